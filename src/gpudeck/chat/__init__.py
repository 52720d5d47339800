"""The Slack bot: the answers of the text views, in a chat."""
