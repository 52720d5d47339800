"""What changed between two views of a host: only the fields that differ, so that a tick stays small."""

from typing import Any

from gpudeck.hub.gpu import View


def diff_host(old: View, new: View) -> View | None:
    """The changed fields of a host, its changed GPUs below `gpus`; None when its set of GPUs is another one.

    A caller that gets None sends the whole host. A patch that holds nothing but `id` says that nothing changed.
    """
    old_gpus, new_gpus = old["gpus"], new["gpus"]
    if len(old_gpus) != len(new_gpus):
        return None
    patch: dict[str, Any] = {name: value for name, value in new.items() if value != old[name] and name != "gpus"}
    gpus = []
    for before, after in zip(old_gpus, new_gpus, strict=True):
        uuid = after["uuid"]
        if before["uuid"] != uuid:
            return None
        changed = {name: value for name, value in after.items() if value != before[name]}
        if changed:
            changed["uuid"] = uuid
            gpus.append(changed)
    if gpus:
        patch["gpus"] = gpus
    patch["id"] = new["id"]
    return patch
