"""The records, one file per framework: data that says where each number lies, and what they parametrise."""
