class LlvmEngine:
    name = "llvm"
    def refuse(self, plan): return "not yet"
