"""The records, one file per framework: data that says where each number lies, and which function they
parametrise.
"""
