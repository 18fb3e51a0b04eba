"""Operator mode: accounts as tokens that an operator's key signs, users as .creds files.

The server is given public keys and signed tokens only. `signing/` holds the keys of the operator
and of the accounts, and what was issued: whoever has it may let anybody in.
"""

import hashlib
import time
from collections.abc import Sequence

import msgspec

from kvmesh.app.ops.nats_isolation import SYSTEM, Account
from kvmesh.app.ops.nats_jwt import (
    account_body,
    activation_body,
    operator_body,
    sign_claims,
    user_body,
)
from kvmesh.app.ops.nats_keys import read_keys, replace_secret
from kvmesh.app.ops.nats_members import AccountsOptions, Member
from kvmesh.app.ops.nats_server_conf import Limits
from kvmesh.bounds import UNREADABLE
from kvmesh.errors import ConfigError
from kvmesh.transport.nats.trust.nkey import ACCOUNT, OPERATOR, KeyPair

CREDS = """\
-----BEGIN NATS USER JWT-----
{token}
------END NATS USER JWT------

-----BEGIN USER NKEY SEED-----
{seed}
------END USER NKEY SEED------
"""


class Issued(msgspec.Struct):
    """The newest token of a user key. `revoked_s`: those issued until then are worth nothing."""

    account: str
    issued_s: int
    rights: str
    revoked_s: int = 0


class Record(msgspec.Struct):
    """What was issued, and since when: a reload refuses an operator that has a newer token."""

    since_s: int
    users: dict[str, Issued]


class Operator:
    """Signs the accounts of one mesh. Keys that exist are used, missing ones made.

    Raises `ConfigError` for a file that is no seed, `OSError` for one that cannot be written.
    """

    def __init__(self, options: AccountsOptions, accounts: Sequence[Account]) -> None:
        self._options = options
        self._accounts = accounts
        self._folder = options.out / "signing"
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._now_s = int(time.time())
        self._key = self._load("operator", OPERATOR)
        self._keys = {
            account.name: self._load(f"account.{account.name.replace(':', '.')}", ACCOUNT)
            for account in accounts
        }
        self._record = self._read_record()

    def write(self, limits: Limits) -> str:
        """Write everybody's .creds; return accounts.conf: the tokens that the server starts with.

        A key that is gone, and an older token with other rights, are revoked. What has not changed
        since the last run is written as it was.
        """
        creds = self._options.out / "creds"
        creds.mkdir(parents=True, exist_ok=True)
        creds.chmod(0o711)
        for account in self._accounts:
            for member in account.members:
                path = creds / f"{member.label}.creds"
                replace_secret(path, self._credentials(account, member), self._options.owner)
        self._revoke_the_gone()
        data = msgspec.json.format(msgspec.json.encode(self._record), indent=1)
        replace_secret(self._folder / "issued.json", data, None)
        return self._server_text(limits)

    def _credentials(self, account: Account, member: Member) -> bytes:
        body = user_body(member.rights)
        rights = hashlib.sha256(msgspec.json.encode(body)).hexdigest()
        last = self._record.users.get(member.public_key)
        if last is None:
            last = Issued(account.name, self._now_s, rights)
            self._record.users[member.public_key] = last
        elif (last.account, last.rights) != (account.name, rights):
            last.revoked_s = last.issued_s
            last.issued_s = max(self._now_s, last.issued_s + 1)
            last.account, last.rights = account.name, rights
        token = sign_claims(
            self._keys[account.name], member.label, member.public_key, last.issued_s, body
        )
        seed = (self._options.out / "seeds" / member.file_name).read_text().strip()
        return CREDS.format(token=token, seed=seed).encode()

    def _revoke_the_gone(self) -> None:
        present = {member.public_key for one in self._accounts for member in one.members}
        for key, issued in self._record.users.items():
            if key not in present:
                issued.revoked_s = issued.issued_s

    def _server_text(self, limits: Limits) -> str:
        system = self._public(SYSTEM)
        public = self._key.public_key
        operator = sign_claims(
            self._key, "kvmesh", public, self._record.since_s, operator_body(system)
        )
        tokens = {self._public(one.name): self._account(one, limits) for one in self._accounts}
        preload = "\n".join(f"  {key}: {token}" for key, token in tokens.items())
        return (
            "# Written by kvmesh nats-accounts --operator: signed tokens, no secret.\n"
            f"operator: {operator}\nsystem_account: {system}\nresolver: MEMORY\n"
            f"resolver_preload {{\n{preload}\n}}\n"
        )

    def _account(self, account: Account, limits: Limits) -> str:
        imports = [
            {
                "name": one.subject,
                "subject": one.subject,
                "account": self._public(one.account),
                "type": one.kind,
                "token": self._activation(account, one.account, one.subject, one.kind),
            }
            for one in account.imports
        ]
        revoked = {
            key: issued.revoked_s
            for key, issued in self._record.users.items()
            if issued.revoked_s and issued.account == account.name
        }
        body = account_body(account, imports, limits.disk, limits.memory, revoked)
        return sign_claims(
            self._key, account.name, self._public(account.name), self._record.since_s, body
        )

    def _activation(self, importer: Account, exporter: str, subject: str, kind: str) -> str:
        return sign_claims(
            self._keys[exporter],
            subject,
            self._public(importer.name),
            self._record.since_s,
            activation_body(subject, kind),
        )

    def _public(self, account: str) -> str:
        return self._keys[account].public_key

    def _load(self, name: str, kind: int) -> KeyPair:
        return read_keys(self._folder / f"{name}.nk", None, kind)

    def _read_record(self) -> Record:
        path = self._folder / "issued.json"
        if not path.exists():
            return Record(self._now_s, {})
        try:
            return msgspec.json.decode(path.read_bytes(), type=Record)
        except UNREADABLE as error:
            raise ConfigError(
                f"{path}: {error}; it says which keys are revoked: restore it, or delete all of "
                f"{self._folder} to start again with other accounts"
            ) from error
