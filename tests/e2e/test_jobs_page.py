"""Jobs of schedulers: the list, the report of one, and the way there."""

import json
import re
import time
from collections.abc import Callable
from urllib.error import HTTPError

import pytest
from playwright.sync_api import Browser, Page, expect

from e2e.axe import serious_violations
from e2e.looking import is_wider_than_its_window, make_envelope, send
from fakes.hubs import HubProcess
from fakes.reports import HOST, make_busy_gpu, make_gpu
from fakes.waiting import wait_until
from gpudeck.model.report import PodGpus, Report

pytestmark = pytest.mark.browser
Visits = Callable[..., Page]


@pytest.fixture
def site(empty: HubProcess) -> HubProcess:
    """A host with two GPUs that Kubernetes gave to a pod, which uses one of them."""
    gpus = [make_busy_gpu(0, user="ada", uuid="GPU-0"), make_gpu(1, uuid="GPU-1")]
    pod = PodGpus(["GPU-0", "GPU-1"], "vision", "train-0", user="ada", since=time.time() - 600)
    report = Report(gpus=gpus, metrics=dict(HOST), pods=[pod])
    send(empty, make_envelope("gpu01", report=report))
    wait_until(lambda: b"train-0" in empty.get("/api/v1/jobs"), "the job")
    return empty


def test_no_jobs_are_explained(still: HubProcess, visit: Visits) -> None:
    page = visit(f"{still.url}/#/jobs")
    expect(page.get_by_text("No jobs yet")).to_be_visible()


@pytest.mark.parametrize("width", [1280, 390])
def test_job_is_found_from_its_gpu_and_has_a_report(site: HubProcess, visit: Visits, width: int) -> None:
    page = visit(f"{site.url}/#/gpu/GPU-1", width=width)
    expect(page.get_by_text("pod vision/train-0 (ada)")).to_be_visible()
    page.get_by_role("link", name="report").click()
    expect(page).to_have_url(re.compile("#/jobs/vision%2Ftrain-0"))
    expect(page.get_by_role("heading", name="Job vision/train-0")).to_be_visible()
    expect(page.get_by_role("main")).to_contain_text("running")
    expect(page.get_by_role("region", name="GPUs of the job")).to_contain_text("gpu01:1")
    assert serious_violations(page) == []
    assert not is_wider_than_its_window(page)
    page.get_by_role("link", name="Jobs", exact=True).first.click()
    row = page.get_by_role("row", name="vision/train-0")
    expect(row).to_contain_text("ada")
    page.get_by_role("button", name="ended").click()
    expect(page.get_by_text("No such jobs")).to_be_visible()


def test_unknown_job_says_so(still: HubProcess, chromium: Browser) -> None:
    page = chromium.new_page()
    page.goto(f"{still.url}/#/jobs/4711")
    expect(page.get_by_text("no job '4711' is known here")).to_be_visible()
    page.close()


def test_usage_has_allocated_hours_where_there_is_a_scheduler(site: HubProcess, visit: Visits) -> None:
    def is_recorded() -> bool:
        end = int(time.time()) // 60 * 60
        try:
            usage = json.loads(site.get(f"/api/v1/usage?by=namespace&start={end - 3600}&end={end}"))
        except HTTPError as error:
            # No job is recorded before this minute.
            if error.code != 400:
                raise
            return False
        return bool(usage["rows"]) and usage["monitored_gpu_hours"] > 0

    # The page asks for whole minutes.
    wait_until(is_recorded, "the usage of the pod", seconds=120, every=0.5)
    page = visit(f"{site.url}/#/history?range=24h")
    page.get_by_role("button", name="by namespace").click()
    expect(page.locator(".usage table")).to_contain_text("Allocated, unused")
