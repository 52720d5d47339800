"""The bot that answers in Slack what curl answers."""
