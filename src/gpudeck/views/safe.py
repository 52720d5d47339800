"""Text from outside as a terminal may show it."""


def clean(text: str) -> str:
    """Without anything a terminal would act upon: control characters, escapes, and marks that turn text around."""
    return text if text.isprintable() else "".join(char if char.isprintable() else "�" for char in text)
