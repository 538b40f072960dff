"""From a net to what runs, and when: passes, plans, schedules."""
