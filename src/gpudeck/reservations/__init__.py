"""Who may have which GPU when: bookings, conflicts, and how they fit what is observed."""
