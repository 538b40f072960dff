"""The loop that many blocks share: each computes all steps of some units, and they meet at each step."""
