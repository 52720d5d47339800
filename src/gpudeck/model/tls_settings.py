"""What an operator decides about TLS, for the hub and for agents that are asked."""

from msgspec import Struct


class TlsSettings(Struct, frozen=True):
    """The files of a certificate, in PEM. Files that change are read again within seconds; connections stay open."""

    cert_file: str
    """The certificate, and after it those of the authorities in between."""
    key_file: str
    """The private key of the certificate, without a passphrase."""
    client_ca_file: str | None = None
    """Certificates of the authority that signs callers': whoever has none of it is not let in."""
