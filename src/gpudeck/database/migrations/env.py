"""What Alembic runs for each of its commands: the steps, on the connection that `migrating.py` hands over."""

from alembic import context

from gpudeck.database.schema import metadata

# SQLite can change few things of a table in place: in a batch a new table is filled and takes the old one's name.
context.configure(connection=context.config.attributes["connection"], target_metadata=metadata, render_as_batch=True)
with context.begin_transaction():
    context.run_migrations()
