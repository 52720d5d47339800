"""Operations on one machine: doctor, backup and restore, testing a host, work on the history file and the database."""
