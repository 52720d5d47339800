"""What commands log."""

import logging

from gpudeck.model.logs import OneLine


def test_a_message_is_one_line_without_the_password_of_an_address() -> None:
    record = logging.LogRecord("x", logging.INFO, "", 0, "sent to %s\n", ("http://me:hunter2@hub:8042/a",), None)
    assert OneLine().format(record).endswith(" sent to http://…@hub:8042/a�")
