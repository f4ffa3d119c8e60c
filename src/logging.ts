import { AsyncLocalStorage } from "node:async_hooks";
import { type Logger, pino } from "pino";

/** What is true of the request that runs now. */
export interface RequestScope {
  /** In every log line of the request, in its `x-request-id` header and in masked errors. */
  readonly requestId: string;
}

/** The request that runs now, for code that has no context in hand (masking, logging). */
export const requestScope = new AsyncLocalStorage<RequestScope>();

export type Log = Logger;

/** Structured logs on standard output; credentials never reach them. */
export function logOpen(level: string): Log {
  return pino({
    level,
    base: { pid: process.pid },
    timestamp: pino.stdTimeFunctions.isoTime,
    formatters: { level: (label) => ({ level: label }) },
    // A copy: pino writes the line's own fields into what it gets here.
    mixin: () => ({ ...requestScope.getStore() }),
  });
}
