"""Who is on which GPUs, as the page counts them."""

from fakes.fleets import fleet_of
from fakes.reports import GIB, make_busy_gpu, make_gpu, make_process
from gpudeck.model.report import GpuReading
from gpudeck.model.view import Fleet
from gpudeck.tui.table_views import TableLayout, find_users, user_cells, user_columns, user_rows


def used(*processes: object, uuid: str = "GPU-0", **others: object) -> GpuReading:
    metrics = {"utilization_percent": 90, "memory_used_bytes": 30 * GIB}
    return make_gpu(uuid=uuid, metrics=metrics, processes=list(processes), **others)


def cells_of(fleet: Fleet) -> list[list[str]]:
    rows = user_rows(fleet.hosts, "gpus", False)
    layout = TableLayout(user_columns(rows), 120)
    return [[text for text, _ in user_cells(row, fleet.time, layout)] for row in rows]


def test_process_on_two_gpus_is_one_and_its_memory_two() -> None:
    gpus = [used(make_process(7, "ann", 4), uuid="GPU-0"), used(make_process(7, "ann", 6), uuid="GPU-1", index=1)]
    [ann] = find_users(fleet_of(("gpu01", gpus)).hosts)
    assert (len(ann.uses), ann.processes, ann.memory) == (2, 1, 10 * GIB)


def test_display_server_is_nobody() -> None:
    assert find_users(fleet_of(("gpu01", [make_gpu(processes=[make_process(1, "root", 1, display=True)])])).hosts) == []


def test_whom_nobody_could_name_is_a_row_of_their_own_and_last_among_equals() -> None:
    fleet = fleet_of(("gpu01", [used(make_process(1, None, 1), make_process(2, "not known", 1))]))
    assert [person.user for person in find_users(fleet.hosts)] == ["not known", None]
    assert [row[0] for row in cells_of(fleet)] == ["not known", "not known"]


def test_gpu_whose_processes_could_not_be_read_is_somebodys() -> None:
    gpu = make_busy_gpu()
    blind = used(uuid="GPU-0")
    blind = GpuReading(uuid="GPU-0", index=0, name=gpu.name, metrics=blind.metrics, processes=None, idle_seconds=0.0)
    [nobody] = find_users(fleet_of(("gpu01", [blind])).hosts)
    assert (nobody.user, nobody.processes, nobody.memory) == (None, None, 30 * GIB)


def test_sum_of_which_a_part_is_not_known_is_at_least_that() -> None:
    unknown = make_process(2, "ann", 0).__class__(pid=2, user="ann", memory_used_bytes=None)
    gpus = [
        used(make_process(1, "ann", 4), uuid="GPU-0"),
        used(unknown, make_process(3, "ben", 1), uuid="GPU-1", index=1),
    ]
    by_name = {row[0]: row for row in cells_of(fleet_of(("gpu01", gpus)))}
    assert (by_name["ann"][2], by_name["ben"][2]) == ("≥ 4.0", "1.0")


def test_silent_host_is_listed_but_not_counted() -> None:
    fleet = fleet_of(("gpu01", [make_busy_gpu(user="ann")]), silent_for=600)
    [ann] = find_users(fleet.hosts)
    assert (len(ann.uses), len(ann.past), ann.memory, ann.utilization) == (0, 1, None, None)
    [row] = cells_of(fleet)
    assert (row[1], row[2], row[-1]) == ("0+1", "–", "gpu01 (down):0")
