"""Writes docs/dashboard/*.png: every page, light and dark, of a service with data. By hand, after a page changed:

    .venv/bin/python -m tests.dashboard_screenshots URL TOKEN JOB

The job has ended; the pages of its slowest task, of that task's programs and fastest record, of a worker and of the newest
cost model are found by following links.
"""

from __future__ import annotations

import shutil
import sys
from functools import partial
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

FOLDER = Path(__file__).parents[1] / "docs/dashboard"
SIZE = {"width": 1120, "height": 720}


def main(url: str, token: str, job: str) -> None:
    """Takes the pictures."""
    FOLDER.mkdir(exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for scheme in ("light", "dark"):
            context = browser.new_context(base_url=url, color_scheme=scheme, viewport=SIZE)
            page = context.new_page()
            take = partial(_take, page, scheme)
            page.goto("/sign-in")
            take("sign-in")
            page.get_by_label("Token").fill(token)
            page.keyboard.press("Enter")
            page.wait_for_url(lambda at: "/sign-in" not in at)
            pages = {"overview": "/", "jobs": "/jobs", "workers": "/workers", "schedules": "/schedules"}
            pages |= {
                "misses": "/misses",
                "cost-models": "/cost-models",
                "instance": "/instance",
                "job": f"/jobs/{job}",
            }
            for name, path in pages.items():
                page.goto(path)
                take(name)
            page.locator("#tasks tbody a").first.click()
            take("task")
            page.goto(f"{page.url.partition('?')[0]}/programs")
            take("programs")
            page.go_back()
            page.locator("#trials tbody a").first.click()
            take("record")
            page.goto("/workers")
            page.locator("#workers tbody a").first.click()
            take("worker")
            page.goto("/cost-models")
            page.locator("#cost-models tbody a").first.click()
            take("cost-model")
            context.close()
        browser.close()


def _take(page: Page, scheme: str, name: str) -> None:
    page.wait_for_load_state("networkidle")
    page.screenshot(path=FOLDER / f"{name}-{scheme}.png")


if __name__ == "__main__":
    main(*sys.argv[1:])
