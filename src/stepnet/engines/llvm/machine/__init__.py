"""What is known of the machine: processors, memory, the system, and object code put into memory."""
