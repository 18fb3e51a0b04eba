"use strict";
// Who is logged in by a cookie, where keys are asked for: a way out, and back to the login when it is over.
const $ = (id) => document.getElementById(id);

async function session() {
  try {
    const answer = await fetch("session");
    return answer.ok ? await answer.json() : {};
  } catch {
    return {}; // Nobody answers: the stream says so.
  }
}

// Whether who looks may change workers: without keys the routers themselves say who.
let operates = false;
export const mayOperate = () => operates;

// Shows whose key it is, and the way out.
export async function showSession() {
  const { login, signed_in: signedIn, tenant, roles = [] } = await session();
  operates = !login || roles.includes("operate");
  document.getElementById("settings-part").hidden = !operates;
  $("logout").hidden = !signedIn;
  if (!signedIn) return;
  const sees = roles.includes("operate") ? "all tenants" : `tenant ${tenant || "without a name"}`;
  $("logout").title = `logged in, shown: ${sees}`;
}

// Goes to the login when the stream ended because there is no session any more.
export async function leaveIfOver() {
  const { login, signed_in: signedIn } = await session();
  if (login && !signedIn) location.assign("login");
}

$("logout").addEventListener("click", async () => {
  await fetch("logout", { method: "POST", headers: { "content-type": "application/json" }, body: "{}" });
  location.assign("login");
});
