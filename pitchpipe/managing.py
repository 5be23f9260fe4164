"""What a client calls to manage a service: versions of cost models, tokens and sessions."""

from __future__ import annotations

from collections.abc import Iterator

from pitchpipe.connection import Connection, parse, segment
from pitchpipe.wire.cost_model import CostModelDetail, CostModelView
from pitchpipe.wire.job import Scope, SessionLink, TokenCreated, TokenRequest, TokenView
from pitchpipe.wire.page import CostModelPage, TokenPage


class ManagingCalls:
    """Methods of `Client`."""

    _connection: Connection

    # --- cost models

    def cost_models(self, target_kind: str | None = None) -> Iterator[CostModelView]:
        """Versions, newest first, of all kinds of targets or of one; pages are fetched as they are needed."""
        params = {} if target_kind is None else {"target_kind": target_kind}
        for page in self._connection.pages("/v1/cost-models", CostModelPage, params):
            yield from page.items

    def cost_model(self, version_id: str) -> CostModelDetail:
        """A version with its marks task by task, and which version replaced which."""
        return parse(CostModelDetail, self._connection.call("GET", f"/v1/cost-models/{segment(version_id)}"))

    def promote_cost_model(self, version_id: str) -> CostModelDetail:
        """Lets a version serve, whatever its marks."""
        return parse(CostModelDetail, self._connection.call("POST", f"/v1/cost-models/{segment(version_id)}/promote"))

    def roll_back_cost_model(self, version_id: str) -> CostModelDetail:
        """The version that serves in place of this one, which had replaced it. Raises Conflict unless this one served."""
        path = f"/v1/cost-models/{segment(version_id)}/rollback"
        return parse(CostModelDetail, self._connection.call("POST", path, repeat=False))

    # --- tokens

    def create_token(self, project: str | None, scope: Scope | str, label: str = "") -> TokenCreated:
        """Makes a token. Only this answer has its text. Not repeated: an answer that was lost leaves a token to revoke.

        project: None for scope operator, and for no other. Raises Forbidden or NotFound for a token that this one may
        not make: an admin makes those of its own project, an operator any.
        """
        request = TokenRequest(project=project, scope=Scope(scope), label=label)
        return parse(TokenCreated, self._connection.call("POST", "/v1/tokens", json=request, repeat=False))

    def session_link(self) -> SessionLink:
        """A link that signs one browser in to the dashboard, with what this client's token may do."""
        return parse(SessionLink, self._connection.call("POST", "/v1/sessions/links", repeat=False))

    def tokens(self) -> Iterator[TokenView]:
        """Tokens of the admin's project; for an operator those of all projects, and of operators."""
        for page in self._connection.pages("/v1/tokens", TokenPage):
            yield from page.items

    def revoke_token(self, token_id: str) -> None:
        """Raises NotFound for a token that is absent, or not one of those that `tokens` gives."""
        self._connection.call("DELETE", f"/v1/tokens/{segment(token_id)}")
