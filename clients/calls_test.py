"""What clients/calls.py finds: python3 clients/calls_test.py."""

import contextlib
import io
import tempfile
import unittest
from pathlib import Path

import calls


class Checked(unittest.TestCase):
    """Each test changes one file in a copy of what the script reads."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        paths = [calls.DATA, calls.PAGE]
        paths += [path.relative_to(calls.ROOT) for path in (calls.ROOT / "proto/baton/v1").glob("*_service.proto")]
        paths += [path.relative_to(calls.ROOT) for path in (calls.ROOT / "clients/go/batonv1").glob("*_grpc.pb.go")]
        for client in calls.SOURCES:
            paths += calls.files_of(calls.ROOT, client)
        for path in paths:
            (self.root / path).parent.mkdir(parents=True, exist_ok=True)
            (self.root / path).write_text((calls.ROOT / path).read_text())

    def change(self, path, old, new):
        text = (self.root / path).read_text()
        self.assertIn(old, text)
        (self.root / path).write_text(text.replace(old, new, 1))

    def said(self):
        said = io.StringIO()
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            code = calls.main(["--check"], self.root)
        return code, said.getvalue()

    def assert_found(self, problem):
        code, said = self.said()
        self.assertEqual(code, 1)
        self.assertIn(problem, said)

    def test_the_repository_is_in_order(self):
        self.assertEqual(self.said()[0], 0)

    def test_a_new_call_needs_cells(self):
        self.change("proto/baton/v1/audit_service.proto", "  rpc List", "  rpc NewCall(A) returns (B);\n  rpc List")
        self.assert_found("AuditService.NewCall, java: no cell")

    def test_a_cell_of_a_call_that_is_gone_is_found(self):
        self.change("proto/baton/v1/audit_service.proto", "  rpc ListAuditEntries", "  // ListAuditEntries")
        self.assert_found("AuditService.ListAuditEntries: no such call in the schema")

    def test_a_cell_needs_a_reason_that_is_there(self):
        self.change(calls.DATA, '{ stub = "person" }', '{ stub = "" }')
        self.assert_found("rust: no reason ")

    def test_a_cell_names_what_the_client_defines(self):
        changes = {
            "rust": ("clients/rust/src/runs.rs", "pub async fn cancel(", "pub async fn abandon("),
            "python": ("clients/python/src/baton/runs.py", "def cancel(", "def abandon("),
            "typescript": ("clients/typescript/src/runs.ts", "async cancel(", "async abandon("),
            "go": ("clients/go/run.go", ") Cancel(", ") Abandon("),
            "java": ("clients/java/src/main/java/dev/baton/Run.java", " cancel(", " abandon("),
        }
        for client, change in changes.items():
            with self.subTest(client):
                self.change(*change)
                self.assert_found(f"RoutingService.CancelRun, {client}: Run has no public ")

    def test_what_is_not_public_does_not_count(self):
        self.change("clients/rust/src/runs.rs", "pub async fn cancel(", "async fn cancel(")
        self.change("clients/java/src/main/java/dev/baton/Run.java", "public dev.baton.v1.Run cancel(", "dev.baton.v1.Run cancel(")
        for client in ("rust", "java"):
            self.assert_found(f"RoutingService.CancelRun, {client}: Run has no public cancel")

    def test_a_stub_that_the_client_has_come_to_use_needs_a_name(self):
        self.change("clients/rust/src/runs.rs", "impl Run {", "impl Run {\n    fn all(&self) { self.client.agents().create_login_code(()); }")
        self.assert_found("AgentService.CreateLoginCode, rust: the client makes this call")

    def test_a_call_that_the_client_no_longer_makes_is_found(self):
        self.change("clients/typescript/src/runs.ts", "service.cancelRun(", "service.stopRun(")
        self.assert_found("RoutingService.CancelRun, typescript: no source of the client makes this call")

    def test_a_client_gives_out_each_stub(self):
        self.change("clients/python/src/baton/v1.py", "import RegistryServiceStub as RegistryServiceStub", "import Nothing")
        self.assert_found("RegistryService, python: clients/python/src/baton/v1.py does not give out its stub")

    def test_a_page_of_another_day_is_found(self):
        self.change(calls.PAGE, "`agent.invite()`", "`agent.summon()`")
        self.assert_found("docs/clients.md is not what")


if __name__ == "__main__":
    unittest.main()
