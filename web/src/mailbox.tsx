// The mailbox: each mail with its receipt, the reason why it came, and a way to stop its sender.

import { useEffect } from "preact/hooks";
import { ago } from "./ago.ts";
import * as mail from "./mail.ts";
import * as state from "./state.ts";

export function Mailbox() {
  const mails = mail.mails.value;
  useEffect(() => mail.markSeen(), [mails]);
  const stopped = mail.reach.value?.stopped ?? [];
  return (
    <div class="pane">
      <p class="quiet-text">
        Sealed where it was sent, opened here. The broker does not know that you got it, the trusted
        node not what it says.
      </p>
      {mail.trouble.value && <p class="says bad">{mail.trouble.value}</p>}
      {mails.length === 0 && !mail.trouble.value && (
        <p class="pane-empty">
          No mail. Under <b>You</b>, put yourself on the map; casts to where you are, were or will
          be arrive here.
        </p>
      )}
      <ul class="cards">
        {mails.map((one) => (
          <Entry key={one.id} one={one} stopped={stopped.includes(one.sender)} />
        ))}
      </ul>
      {stopped.length > 0 && (
        <section aria-label="Stopped senders">
          <h2 class="pane-title">Stopped senders</h2>
          <ul class="chips">
            {stopped.map((name) => (
              <li key={name}>
                {name}
                <button type="button" class="link" onClick={() => void mail.stop(name, false)}>
                  let them write again<span class="unseen">: {name}</span>
                </button>
              </li>
            ))}
          </ul>
        </section>
      )}
    </div>
  );
}

function Entry({ one, stopped }: { one: mail.Mail; stopped: boolean }) {
  const passed = ago(state.now.value - one.arrivedMs);
  return (
    <li class="entry">
      <div class="entry-row">
        <small>
          from <b>{one.sender}</b> · {passed === "now" ? "just now" : `${passed} ago`}
        </small>
      </div>
      <p class="entry-text">
        {one.letter ? mail.textOf(one.letter) : "Sealed to a key that this browser does not have."}
      </p>
      {one.letter?.reason && (
        <p class="receipt">
          <b>Why you:</b> a pseudonym of yours satisfies <code>{one.letter.reason}</code>
          <br />
          <b>Receipt:</b>{" "}
          {one.doubt ||
            `signed by ${one.letter.receipt?.node || "this service"}, who can not deny it`}
        </p>
      )}
      <div class="entry-row">
        <span class="grow" />
        <button
          type="button"
          class="quiet"
          disabled={stopped}
          onClick={() => void mail.stop(one.sender, true)}
        >
          {stopped ? "Sender stopped" : "Stop this sender"}
        </button>
        <button type="button" class="quiet" onClick={() => void mail.remove(one.id)}>
          Delete
        </button>
      </div>
    </li>
  );
}
