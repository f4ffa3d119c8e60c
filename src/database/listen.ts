// One connection that hears what NOTIFY says, for as long as the process runs. What it hears is a hint;
// the tables are the truth: after every reconnection the listener is told to look for itself.
import { setTimeout as delay } from "node:timers/promises";
import pg from "pg";
import type { Log } from "../logging.ts";

/** A connection that listens. */
export interface Listener {
  close(): Promise<void>;
}

/** What a listener hears. */
export interface ListenerEvents {
  /** The payload of a notification. */
  onNotice(payload: string): void;
  /** Connected (again): whatever was said meanwhile was not heard. */
  onConnect(): void;
}

const CHECK_MS = 5000;
const MAX_WAIT_MS = 3000;

/**
 * Listens on the channel of deployments. A connection that is lost, or does not answer a question within
 * 5 seconds, is replaced.
 * @param url of the database itself: a pooler in transaction mode does not pass notifications on.
 */
export function deploymentListen(url: string, events: ListenerEvents, log: Log): Listener {
  const closing = new AbortController();

  /** Connects, listens, and returns or throws when the connection is of no use any more. */
  async function listen(): Promise<void> {
    const client = new pg.Client({
      connectionString: url,
      application_name: "holdfast listen",
      connectionTimeoutMillis: CHECK_MS,
      query_timeout: CHECK_MS,
      keepAlive: true,
    });
    const lost = new AbortController();
    client.on("error", (error) => lost.abort(error));
    client.on("end", () => lost.abort());
    client.on("notification", ({ payload }) => events.onNotice(payload ?? ""));
    const over = AbortSignal.any([lost.signal, closing.signal]);
    try {
      await client.connect();
      await client.query("LISTEN holdfast_deployment");
      events.onConnect();
      while (!over.aborted) {
        await delay(CHECK_MS, undefined, { signal: over }).catch(() => undefined);
        if (!over.aborted) await client.query("SELECT 1");
      }
      if (lost.signal.reason instanceof Error) throw lost.signal.reason;
    } finally {
      client.removeAllListeners("notification");
      // A connection that does not answer does not say goodbye either.
      void client.end().catch(() => undefined);
    }
  }

  const running = (async () => {
    let wait = 100;
    while (!closing.signal.aborted) {
      const began = performance.now();
      await listen().catch((error: unknown) => {
        if (!closing.signal.aborted) log.warn({ err: error }, "the listening connection was lost");
      });
      wait = performance.now() - began > CHECK_MS ? 100 : Math.min(wait * 2, MAX_WAIT_MS);
      await delay(wait, undefined, { signal: closing.signal }).catch(() => undefined);
    }
  })();

  return {
    async close() {
      closing.abort();
      await running;
    },
  };
}
