"""Sends a mail with an HTML part and a plain text of its own, which Apprise cannot. In the sender process only."""

import smtplib
import ssl
from email.headerregistry import Address
from email.message import EmailMessage
from email.utils import formatdate, make_msgid
from typing import Any

from gpudeck.alerts.notifiers.rendering import MailContent


def send_mail(service: Any, title: str, content: MailContent, seconds: float) -> None:
    """`service` is what Apprise read from the channel's address: server, sender and recipients. Raises OSError and
    SMTPException."""
    name, sender = service.from_addr
    recipients = [address for _, address in service.targets]
    mail = EmailMessage()
    mail["Subject"] = " ".join(title.split())
    mail["From"] = Address(name or "", addr_spec=sender)
    mail["To"] = ", ".join(recipients)
    mail["Date"] = formatdate(localtime=True)
    mail["Message-ID"] = make_msgid(domain=sender.rpartition("@")[2] or None)
    # Programs that answer mails leave it alone.
    mail["Auto-Submitted"] = "auto-generated"
    if service.cc:
        mail["Cc"] = ", ".join(sorted(service.cc))
    if service.reply_to:
        mail["Reply-To"] = ", ".join(sorted(service.reply_to))
    mail.set_content(content.text, cte="base64" if not content.text.isascii() else None)
    mail.add_alternative(content.html, subtype="html", cte="quoted-printable")
    with _connect(service, seconds) as server:
        if service.user and service.password:
            server.login(service.user, service.password)
        refused = server.send_message(mail, sender, [*recipients, *service.cc, *service.bcc])
    if refused:
        raise smtplib.SMTPRecipientsRefused(refused)


def _connect(service: Any, seconds: float) -> smtplib.SMTP:
    context = ssl.create_default_context()
    if not service.verify_certificate:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if service.secure_mode == "ssl":
        return smtplib.SMTP_SSL(service.smtp_host, service.port, timeout=seconds, context=context)
    server = smtplib.SMTP(service.smtp_host, service.port, timeout=seconds)
    if service.secure_mode == "starttls":
        server.starttls(context=context)
    return server
