"""Digests: the figures of a week or month for each user, leads of groups, admins and channels."""
