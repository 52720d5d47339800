"""Who may have which GPU when: reservations, conflicts, and how they fit what is observed."""
