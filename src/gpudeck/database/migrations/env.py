"""What Alembic runs for each of its commands: the steps, on the connection that `migrating.py` hands over."""

from alembic import context

from gpudeck.database.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    version_table=context.config.attributes["version_table"],
    target_metadata=metadata,
    # SQLite can change few things of a table in place: in a batch a new table is filled and takes the old one's name.
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
