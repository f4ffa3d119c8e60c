/**
 * What a client should offer after a refusal: one button per value. RETRY: somebody was faster, the
 * same request may succeed. BUY_MORE: there is nothing to sell. USE_EXISTING: what was asked for is
 * already there. START_OVER: a new request with a new key. WAIT: the same request, later.
 */
export type NextAction =
  | "RETRY"
  | "BUY_MORE"
  | "USE_EXISTING"
  | "START_OVER"
  | "FOLLOW"
  | "RENAME"
  | "WAIT"
  | "FIX_REQUEST"
  | "CONTACT_OPERATOR";

/** An expected outcome that is not a success. `kind` is the name of the GraphQL type. */
export interface Refusal<Kind extends string = string> {
  readonly kind: Kind;
  /** An instruction for the person, or the agent, that reads it. */
  readonly message: string;
  readonly nextAction: NextAction;
  /** Milliseconds after which a repeat makes sense; null where a repeat does not help. */
  readonly retryAfterMs: number | null;
}

/**
 * The request itself is wrong: BAD_USER_INPUT, naming the field. Nothing was written. Also thrown for
 * an unknown id where the result has no NotFound member, in the same words as for an id of another
 * organization.
 */
export class InvalidInput extends Error {
  override readonly name = "InvalidInput";
  readonly field: string;
  /** @param field path of the argument, e.g. `input.requirements.minCpuCores`. */
  constructor(field: string, problem: string) {
    super(`${field}: ${problem}`);
    this.field = field;
  }
}

/** The caller is not known (UNAUTHENTICATED) or may not do this (FORBIDDEN). */
export class AccessDenied extends Error {
  override readonly name = "AccessDenied";
  readonly code: "UNAUTHENTICATED" | "FORBIDDEN";
  constructor(code: "UNAUTHENTICATED" | "FORBIDDEN", message: string) {
    super(message);
    this.code = code;
  }
}

/**
 * The rows were locked by somebody else for longer than a request waits, or a deadlock was resolved
 * against this request more often than it repeats itself. Nothing was changed.
 */
export class TryAgain extends Error {
  override readonly name = "TryAgain";
  constructor(cause: unknown) {
    super(
      "The same rows are being changed by somebody else at this moment. Nothing was changed; repeat the same request.",
      {
        cause,
      },
    );
  }
}

/** A stream cannot go on; the message says how to take it up again. Nothing was changed. */
export class StreamEnded extends Error {
  override readonly name = "StreamEnded";
}

/** The process cannot do what it was started for; the message tells the person who started it why. */
export class Refused extends Error {}
