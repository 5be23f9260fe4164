"""Jobs, tokens, models, events and what else the service remembers; and that projects never see each other."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import insert, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from pitchpipe.errors import Forbidden, IdempotencyConflict, InvalidInput, InvalidTransition, NotFound, Unauthorized
from pitchpipe.wire.comparison import Comparison, not_compared
from pitchpipe.wire.ids import new_id, sha256
from pitchpipe.wire.job import Budget, EventKind, JobRequest, JobState, ModelFormat, Progress, Scope, TokenRequest
from pitchpipe.wire.lease import LeaseRequest, Purpose, Report, WorkerState
from pitchpipe.wire.task import TaskKind, Workload
from service.db import Database
from service.store import (
    batches,
    coordination,
    cost_models,
    events,
    job_tasks,
    jobs,
    leases,
    models,
    records,
    samples,
    tokens,
    workers,
    workloads,
)
from service.store.cost_models import NewVersion
from service.store.tokens import Operator, Principal
from service.tables import Project, Token
from tests.scene import OTHER_TARGET, TARGET, WORKLOAD, Scene, best, candidates, record, task, timed


@pytest.fixture
def scene(database: Database) -> Scene:
    return Scene(database)


class TestTokens:
    def test_a_token_authenticates_its_project_and_scope(self, database: Database) -> None:
        with database.transaction() as session:
            made = tokens.create(session, TokenRequest(project="vision", scope=Scope.WORKER, label="rack 4"))
            principal = tokens.authenticate(session, made.token)
            assert isinstance(principal, Principal)
            assert principal.project == tokens.bootstrap(session, "vision")
        assert (principal.project_name, principal.scope, principal.token_id) == ("vision", Scope.WORKER, made.id)
        assert made.token.startswith("pp_")
        assert len(made.token) > 40

    def test_the_token_itself_is_stored_nowhere(self, database: Database) -> None:
        with database.transaction() as session:
            made = tokens.create(session, TokenRequest(project="vision", scope=Scope.USER))
            (view,) = tokens.list_(session)[0]
        assert made.token not in view.model_dump_json()
        with database.reading() as session:
            dump = session.connection().exec_driver_sql("SELECT * FROM tokens").all()
        assert made.token not in repr(dump)
        assert sha256(made.token.encode()) in repr(dump)

    def test_a_wrong_or_revoked_token_is_unauthorized(self, database: Database) -> None:
        with database.transaction() as session:
            made = tokens.create(session, TokenRequest(project="vision", scope=Scope.USER))
            first = tokens.revoke(session, made.id)
            assert tokens.revoke(session, made.id) == first
        for token in (made.token, made.token + "x", "", "pp_"):
            with pytest.raises(Unauthorized), database.reading() as session:
                tokens.authenticate(session, token)
        with pytest.raises(NotFound), database.transaction() as session:
            tokens.revoke(session, new_id("tok"))

    def test_an_operator_has_no_project_and_everybody_else_has_one(self, database: Database) -> None:
        with database.transaction() as session:
            made = tokens.create(session, TokenRequest(scope=Scope.OPERATOR))
            assert tokens.authenticate(session, made.token) == Operator(token_id=made.id)
            tokens.adopt(session, TokenRequest(scope=Scope.OPERATOR), "chosen")
            assert isinstance(tokens.authenticate(session, "chosen"), Operator)
            assert session.scalars(select(Project)).all() == []
        assert made.project is None
        for wrong in (TokenRequest(project="vision", scope=Scope.OPERATOR), TokenRequest(scope=Scope.ADMIN)):
            with pytest.raises(InvalidInput, match="project"), database.transaction() as session:
                tokens.create(session, wrong)
            with pytest.raises(InvalidInput, match="project"), database.transaction() as session:
                tokens.adopt(session, wrong, "chosen")
        with database.reading() as session:
            assert len(tokens.list_(session)[0]) == 2

    @pytest.mark.parametrize(("scope", "project"), [("operator", "prj"), ("admin", None)])
    def test_the_database_keeps_operators_out_of_projects_and_others_in_them(
        self, scene: Scene, scope: str, project: str | None
    ) -> None:
        row = {"id": new_id("tok"), "project": project and scene.project, "scope": Scope(scope), "label": ""}
        with pytest.raises(IntegrityError, match="ck_tokens_project"), scene.database.transaction() as session:
            session.execute(insert(Token).values(**row, digest="d", created_at=0.0))

    def test_a_project_sees_and_revokes_its_own_tokens_only(self, database: Database) -> None:
        with database.transaction() as session:
            ours, theirs = (tokens.create(session, TokenRequest(project=p, scope=Scope.ADMIN)) for p in ("a", "b"))
            operator = tokens.create(session, TokenRequest(scope=Scope.OPERATOR))
            a = tokens.bootstrap(session, "a")
        with database.reading() as session:
            assert [view.id for view in tokens.list_(session, project=a)[0]] == [ours.id]
            assert sorted(str(view.project) for view in tokens.list_(session)[0]) == ["None", "a", "b"]
        for other in (theirs, operator):
            with pytest.raises(NotFound), database.transaction() as session:
                tokens.revoke(session, other.id, project=a)
            with database.reading() as session:
                tokens.authenticate(session, other.token)
        with database.transaction() as session:
            assert tokens.revoke(session, ours.id, project=a).revoked_at is not None
            assert tokens.revoke(session, operator.id).project is None

    def test_an_admin_may_make_what_its_project_has_and_an_operator_anything(self, database: Database) -> None:
        with database.transaction() as session:
            for project in ("a", "b"):
                tokens.bootstrap(session, project)
            made = tokens.create(session, TokenRequest(project="a", scope=Scope.ADMIN))
            admin = tokens.authenticate(session, made.token)
        requests = [TokenRequest(project=p, scope=s) for p in ("a", "b", "new", None) for s in Scope]
        may = {}
        for request in requests:
            tokens.may_create(Operator(token_id=new_id("tok")), request)
            try:
                tokens.may_create(admin, request)
                may[request.project, request.scope] = None
            except (Forbidden, NotFound) as refused:
                may[request.project, request.scope] = type(refused)
        own = dict.fromkeys((Scope.USER, Scope.WORKER, Scope.ADMIN))
        assert {scope: may["a", scope] for scope in own} == own
        assert all(may[project, scope] is NotFound for project in ("b", "new") for scope in own)
        assert all(may[project, Scope.OPERATOR] is Forbidden for project in ("a", "b", "new", None))

    def test_a_manager_whose_token_was_revoked_cannot_be_held(self, database: Database) -> None:
        with database.transaction() as session:
            first, second = (tokens.create(session, TokenRequest(project="a", scope=Scope.ADMIN)) for _ in range(2))
            one, two = tokens.authenticate(session, first.token), tokens.authenticate(session, second.token)
        with database.transaction() as session:
            tokens.hold(session, one, second.id)
            tokens.revoke(session, second.id)
        for token in (None, first.id, second.id):
            with pytest.raises(Unauthorized), database.transaction() as session:
                tokens.hold(session, two, token)
        with database.transaction() as session:
            tokens.hold(session, one)
            tokens.hold(session, one, second.id)
            tokens.hold(session, one, "tok_of_nobody")

    def test_of_two_managers_that_revoke_each_other_one_wins(self, database: Database) -> None:
        with database.transaction() as session:
            pair = [tokens.create(session, TokenRequest(project="a", scope=Scope.ADMIN)) for _ in range(2)]
            managers = [tokens.authenticate(session, made.token) for made in pair]
        begin = threading.Barrier(2)

        def revoke(own: int) -> bool:
            begin.wait(30)
            try:
                with database.transaction() as session:
                    tokens.hold(session, managers[own], pair[1 - own].id)
                    tokens.revoke(session, pair[1 - own].id)
            except Unauthorized:
                return False
            return True

        with ThreadPoolExecutor(2) as pool:
            assert sorted(pool.map(revoke, range(2))) == [False, True]


class TestModels:
    def test_the_same_bytes_are_the_same_model(self, scene: Scene) -> None:
        def create(name: str, content: bytes = b"same") -> str:
            with scene.database.transaction() as session:
                made = models.create(
                    session,
                    scene.project,
                    name=name,
                    format=ModelFormat.ONNX,
                    digest=sha256(content),
                    size_bytes=len(content),
                )
                return made.id

        assert create("a") == create("b")
        assert create("a") != create("a", b"other")

    def test_what_a_client_compared_is_kept_and_not_lost_to_one_that_could_not(self, scene: Scene) -> None:
        compared = Comparison(reference="PyTorch \x00 2", input_sets=3, error=2e-7, tolerance=1e-3)
        better = compared.model_copy(update={"error": 1e-7})
        with scene.database.transaction() as session:
            made = models.create(
                session, scene.project, name="m", format=ModelFormat.ONNX, digest=sha256(b"m"), size_bytes=1
            )
        assert made.comparison is None
        for told, kept in [
            (not_compared("torch is not installed"), not_compared("torch is not installed")),
            (not_compared("it was asked not to"), not_compared("it was asked not to")),
            (compared, compared),
            (not_compared("torch is not installed"), compared),
            (better, better),
        ]:
            with scene.database.transaction() as session:
                assert models.compare(session, scene.project, made.id, told).comparison == kept
            with scene.database.reading() as session:
                assert models.get(session, scene.project, made.id).comparison == kept
        with pytest.raises(NotFound), scene.database.transaction() as session:
            models.compare(session, tokens.bootstrap(session, "other"), made.id, compared)

    def test_any_text_can_be_a_name(self, scene: Scene) -> None:
        with scene.database.transaction() as session:
            made = models.create(
                session,
                scene.project,
                name="nul \x00 and \U0001f4a5 '); DROP TABLE models; --",
                format=ModelFormat.RELAX,
                digest=sha256(b"named"),
                size_bytes=1,
            )
            assert models.get(session, scene.project, made.id) == made
        with pytest.raises(NotFound), scene.database.reading() as session:
            models.get(session, scene.project, "mdl_\x00")

    def test_pages_follow_each_other_without_gap_or_repetition(self, scene: Scene) -> None:
        made = [scene.model]
        for n in range(7):
            with scene.database.transaction() as session:
                made += [
                    models.create(
                        session,
                        scene.project,
                        name=str(n),
                        format=ModelFormat.ONNX,
                        digest=sha256(str(n).encode()),
                        size_bytes=1,
                    ).id
                ]
        found, cursor = [], None
        for _ in range(3):
            with scene.database.reading() as session:
                items, cursor = models.list_(session, scene.project, cursor, 3)
            found += [item.id for item in items]
        assert cursor is None
        assert found == sorted(made, reverse=True)

    @pytest.mark.parametrize("cursor", ["", "nonsense", "job_00000000000000000000000000", "mdl_\x00"])
    def test_a_wrong_cursor_is_invalid_input(self, scene: Scene, cursor: str) -> None:
        with pytest.raises(InvalidInput), scene.database.reading() as session:
            models.list_(session, scene.project, cursor, 3)


class TestJobs:
    def request(self, scene: Scene, trials: int = 8) -> JobRequest:
        return JobRequest(model=scene.model, targets=(TARGET,), budget=Budget(trials=trials))

    def test_a_job_comes_back_as_it_was_submitted(self, scene: Scene) -> None:
        with scene.database.transaction() as session:
            made, new = jobs.submit(session, scene.project, self.request(scene))
            assert jobs.get(session, scene.project, made.id) == made
        assert new
        assert (made.targets, made.budget, made.state) == ((TARGET,), Budget(trials=8), JobState.QUEUED)
        assert made.model_name == "model.onnx"

    def test_the_same_key_gives_the_same_job_once(self, scene: Scene) -> None:
        with scene.database.transaction() as session:
            first, new = jobs.submit(session, scene.project, self.request(scene), "key")
            again, new_again = jobs.submit(session, scene.project, self.request(scene), "key")
        assert (first, new, new_again) == (again, True, False)

    def test_the_same_key_with_another_request_is_a_conflict(self, scene: Scene) -> None:
        with scene.database.transaction() as session:
            jobs.submit(session, scene.project, self.request(scene), "key")
        with pytest.raises(IdempotencyConflict), scene.database.transaction() as session:
            jobs.submit(session, scene.project, self.request(scene, 9), "key")

    def test_without_a_key_every_submission_is_a_job(self, scene: Scene) -> None:
        with scene.database.transaction() as session:
            one, _ = jobs.submit(session, scene.project, self.request(scene))
            two, _ = jobs.submit(session, scene.project, self.request(scene))
        assert one.id != two.id

    def test_an_unknown_model_is_not_found_and_nothing_is_stored(self, scene: Scene) -> None:
        request = self.request(scene).model_copy(update={"model": new_id("mdl")})
        with pytest.raises(NotFound), scene.database.transaction() as session:
            jobs.submit(session, scene.project, request, "key")
        with scene.database.reading() as session:
            assert len(jobs.list_(session, scene.project)[0]) == 1

    def test_an_invalid_transition_tells_the_history_and_changes_nothing(self, scene: Scene) -> None:
        with pytest.raises(InvalidTransition) as caught, scene.database.transaction() as session:
            jobs.transition(session, scene.job, JobState.INGESTING)
        assert "queued -> ingesting -> tuning; it cannot become ingesting" in caught.value.detail
        with scene.database.reading() as session:
            assert jobs.get(session, scene.project, scene.job).state is JobState.TUNING

    def test_a_failed_job_tells_why(self, scene: Scene) -> None:
        with scene.database.transaction() as session:
            jobs.transition(session, scene.job, JobState.FAILED, "operator Foo\x00 at node 3", "unsupported-operator")
            view = jobs.get(session, scene.project, scene.job)
        assert view.error_code == "unsupported-operator"
        assert view.error is not None
        assert view.error.startswith("operator Foo")
        assert view.finished_at is not None

    def test_cancelling_twice_is_cancelling_once_and_a_done_job_cannot_be(self, scene: Scene) -> None:
        with scene.database.transaction() as session:
            first = jobs.cancel(session, scene.project, scene.job)
            assert jobs.cancel(session, scene.project, scene.job) == first
            assert jobs.history(session, scene.job).count(JobState.CANCELLED) == 1
        done = scene.submit()
        with scene.database.transaction() as session:
            jobs.transition(session, done, JobState.DONE)
        with pytest.raises(InvalidTransition), scene.database.transaction() as session:
            jobs.cancel(session, scene.project, done)

    def test_of_a_paused_job_nothing_is_leased_until_it_is_resumed(self, scene: Scene) -> None:
        def pause(*, paused: bool) -> bool:
            with scene.database.transaction() as session:
                return jobs.set_paused(session, scene.project, scene.job, paused=paused).paused

        scene.issue(candidates(0, 4))
        grant = scene.granted(2)
        assert [pause(paused=True) for _ in range(2)] == [True, True]
        scene.issue(candidates(4, 6), Purpose.CONFIRM)
        assert scene.acquire() is None
        scene.report(grant, [timed(grant.candidates[0].digest)])
        assert scene.trials() == (1, 0), "what was leased may end"
        scene.pass_time()
        assert scene.expire() == 1
        assert scene.acquire() is None, "nor is what comes back"
        with scene.database.reading() as session:
            assert jobs.running(session) == []
            assert jobs.waited_for(session, scene.project) == set()
            assert len(jobs.active(session)) == 1
        assert not pause(paused=False)
        granted = [scene.granted() for _ in range(3)]
        assert [len(each.candidates) for each in granted] == [2, 1, 2]
        assert {each.purpose for each in granted[:1]} == {Purpose.CONFIRM}
        with scene.database.transaction() as session:
            told = [event.data for event in events.after(session, scene.project, scene.job, 0)]
            assert [data["paused"] for data in told if "paused" in data] == [True, False]
            assert jobs.history(session, scene.job).count(JobState.TUNING) == 1
            jobs.set_paused(session, scene.project, scene.job, paused=True)
            assert not jobs.cancel(session, scene.project, scene.job).paused
        for paused in (True, False):
            with pytest.raises(InvalidTransition, match="cancelled"):
                pause(paused=paused)

    def test_active_lists_what_has_not_ended(self, scene: Scene) -> None:
        other = scene.submit()
        with scene.database.transaction() as session:
            jobs.transition(session, scene.job, JobState.DONE)
            assert jobs.active(session) == [(scene.project, other, JobState.TUNING)]

    def test_tasks_come_back_as_they_were_split_and_repeating_keeps_their_charge(self, scene: Scene) -> None:
        second = Workload(digest=sha256(b"second"), ir='{"b": 2}')
        split = [task(second), task(), task(second, OTHER_TARGET).model_copy(update={"kind": TaskKind.FIXED})]
        job = scene.submit(tasks=split)
        scene.issue(candidates(0, 2), job=job)
        grant = scene.granted()
        scene.report(grant, [timed(c.digest) for c in grant.candidates])
        with scene.database.transaction() as session:
            job_tasks.set_tasks(session, job, split)
            assert job_tasks.tasks(session, job) == split
            job_tasks.update_task(
                session, job, second.digest, OTHER_TARGET, reused=True, untuned_secs=2.0, tuned_secs=1.0
            )
            views = jobs.get(session, scene.project, job).tasks
        assert [view.trials for view in views] == [0, 2, 0]
        assert [view.tuned_secs for view in views] == [None, None, 1.0]
        assert views[2].reused
        assert views[2].kind is TaskKind.FIXED

    def test_a_tasks_trials_are_charged_by_reports_alone(self, scene: Scene) -> None:
        with pytest.raises(InvalidInput), scene.database.transaction() as session:
            job_tasks.update_task(session, scene.job, WORKLOAD.digest, TARGET, trials=99)
        with pytest.raises(NotFound), scene.database.transaction() as session:
            job_tasks.update_task(session, scene.job, WORKLOAD.digest, OTHER_TARGET, reused=True)

    def test_progress_shows_the_charged_trials_whatever_it_is_told(self, scene: Scene) -> None:
        scene.issue(candidates(0, 2))
        grant = scene.granted()
        scene.report(grant, [timed(c.digest) for c in grant.candidates])
        with scene.database.transaction() as session:
            jobs.update_progress(session, scene.job, Progress(trials=77, best_secs=0.5, eta_secs=9.0), 12.5)
            view = jobs.get(session, scene.project, scene.job)
            assert jobs.spent_secs(session, scene.job) == 12.5
        assert (view.progress.trials, view.progress.best_secs, view.progress.eta_secs) == (2, 0.5, 9.0)


class TestEvents:
    def test_they_are_numbered_from_one_without_gaps_and_resumed_after_any(self, scene: Scene) -> None:
        with scene.database.transaction() as session:
            for n in range(3):
                events.append(session, scene.job, EventKind.PROGRESS, {"n": n})
            found = events.after(session, scene.project, scene.job, 0)
            assert [event.seq for event in found] == list(range(1, len(found) + 1))
            assert [event.data for event in found[-3:]] == [{"n": 0}, {"n": 1}, {"n": 2}]
            assert events.after(session, scene.project, scene.job, found[-2].seq) == found[-1:]
            assert events.after(session, scene.project, scene.job, found[-1].seq) == []
            assert events.after(session, scene.project, scene.job, 2**80) == []
            assert events.after(session, scene.project, scene.job, -5, limit=2) == found[:2]


class TestCoordination:
    def test_one_holder_at_a_time_until_it_gives_up_or_stops_renewing(self, database: Database) -> None:
        def hold(holder: str) -> bool:
            with database.transaction() as session:
                return coordination.hold(session, holder, 30.0)

        assert hold("a")
        assert not hold("b")
        assert hold("a")
        database.clock_offset_secs += 31
        assert hold("b")
        assert not hold("a")
        with database.transaction() as session:
            coordination.release(session, "a")
        assert not hold("a")
        with database.transaction() as session:
            coordination.release(session, "b")
        assert hold("a")


Call = Callable[[Session, str], object]


def test_another_projects_rows_are_not_found(database: Database) -> None:
    mine, theirs = Scene(database), Scene(database)
    mine.issue(candidates(0, 2))
    grant = mine.granted(1)
    report = Report(fence=grant.fence, results=(timed(grant.candidates[0].digest),), final=True)
    request = JobRequest(model=mine.model, targets=(TARGET,), budget=Budget(trials=1))
    reach: dict[str, Call] = {
        "models.get": lambda s, p: models.get(s, p, mine.model),
        "jobs.submit": lambda s, p: jobs.submit(s, p, request),
        "jobs.get": lambda s, p: jobs.get(s, p, mine.job),
        "jobs.cancel": lambda s, p: jobs.cancel(s, p, mine.job),
        "events.after": lambda s, p: events.after(s, p, mine.job, 0),
        "workers.get": lambda s, p: workers.get(s, p, mine.worker),
        "workers.touch": lambda s, p: workers.touch(s, p, mine.worker),
        "workers.set_state": lambda s, p: workers.set_state(s, p, mine.worker, WorkerState.GONE),
        "leases.available": lambda s, p: leases.available(s, p, mine.worker),
        "leases.acquire": lambda s, p: leases.acquire(s, p, LeaseRequest(worker=mine.worker), 30.0),
        "leases.heartbeat": lambda s, p: leases.heartbeat(s, p, grant.lease, grant.fence, 30.0),
        "leases.report": lambda s, p: leases.report(s, p, grant.lease, report),
        "workloads.get": lambda s, p: workloads.get(s, p, sha256(b"mine alone")),
    }
    with database.transaction() as session:
        workloads.put(session, mine.project, Workload(digest=sha256(b"mine alone"), ir="{}"))
    for call in reach.values():
        with pytest.raises(NotFound), database.transaction() as session:
            call(session, theirs.project)
    assert mine.report(grant, report.results).accepted == 1


def test_lists_searches_and_answers_hold_one_projects_rows_only(database: Database) -> None:
    mine, theirs = Scene(database), Scene(database)
    made = record(candidates(0, 1)[0])
    with database.transaction() as session:
        records.add(session, mine.project, [made], {made.result.candidate: b"features"})
        records.set_best(session, mine.project, WORKLOAD.digest, TARGET, best(made))
        cost_models.add(session, mine.project, "llvm", NewVersion(digest=sha256(b"model")))
        assert [view.id for view in models.list_(session, theirs.project)[0]] == [theirs.model]
        assert [view.id for view in jobs.list_(session, theirs.project)[0]] == [theirs.job]
        assert [view.id for view in workers.list_(session, theirs.project)[0]] == [theirs.worker]
        assert records.list_(session, theirs.project)[0] == []
        assert records.best(session, theirs.project, WORKLOAD.digest, TARGET) is None
        assert batches.seen(session, theirs.project, WORKLOAD.digest, TARGET) == frozenset()
        assert samples.newest(session, theirs.project, "llvm", 10) == []
        assert cost_models.list_(session, theirs.project, None, None, 10)[0] == []
    mine.issue(candidates(5, 7))
    assert theirs.acquire() is None, "a worker measures for its own project"
    assert theirs.issue(candidates(5, 7)) == 2
