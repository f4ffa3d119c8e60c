import { setTimeout as delay } from "node:timers/promises";

/** What was waited for did not come in time. */
export class TooLate extends Error {
  override readonly name = "TooLate";
}

/**
 * Waits for something that may never come: a query on a connection that is dead, say. It goes on by
 * itself; whatever becomes of it is nobody's business any more.
 * @param ms how long to wait at the most.
 * @throws TooLate; the signal's reason as soon as it is aborted; whatever `work` is rejected with.
 */
export async function within<T>(work: Promise<T>, ms: number, signal?: AbortSignal): Promise<T> {
  const settled = new AbortController();
  const given = signal === undefined ? settled.signal : AbortSignal.any([settled.signal, signal]);
  // Its failure is looked at below, or by nobody.
  work.catch(() => undefined);
  try {
    return await Promise.race([
      work,
      delay(ms, undefined, { signal: given }).then(
        () => Promise.reject(new TooLate(`there was no answer within ${Math.round(ms)} ms`)),
        () => Promise.reject(signal?.reason ?? new TooLate("nobody waits any more")),
      ),
    ]);
  } finally {
    settled.abort();
  }
}
