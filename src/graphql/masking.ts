import { GraphQLError, Kind } from "graphql";
import type { Log } from "../logging.ts";
import { requestScope } from "../logging.ts";
import { AccessDenied, InvalidInput, StreamEnded, TryAgain } from "../refusal.ts";

/**
 * Turns whatever was thrown into what a client may read. What it must know passes: bad input with
 * the field's name, missing rights, and a request that may be repeated. Everything else becomes
 * INTERNAL_SERVER_ERROR with the request id, and its cause goes to the log. The environment (NODE_ENV)
 * has no say in it.
 */
export function errorMask(log: Log): (error: unknown) => Error {
  return (error) => {
    // What a resolver throws comes wrapped; these two are thrown on the way to the first one.
    if (error instanceof SyntaxError) return unreadable("The variables or extensions are not valid JSON.");
    if (error instanceof RangeError) return unreadable("The document is nested too deeply.");
    if (!(error instanceof GraphQLError)) return internal(log, error, error);
    const cause = error.originalError;
    const locate = { nodes: error.nodes ?? null, path: error.path ?? null };
    if (cause instanceof InvalidInput) {
      return new GraphQLError(cause.message, {
        ...locate,
        extensions: { code: "BAD_USER_INPUT", field: cause.field },
      });
    }
    if (cause instanceof AccessDenied) {
      return new GraphQLError(cause.message, { ...locate, extensions: { code: cause.code } });
    }
    if (cause instanceof StreamEnded) {
      return new GraphQLError(cause.message, { ...locate, extensions: { code: "TRY_AGAIN" } });
    }
    if (cause instanceof TryAgain) {
      log.warn({ err: cause.cause }, "a request gave way to a lock");
      return new GraphQLError(cause.message, { ...locate, extensions: { code: "TRY_AGAIN" } });
    }
    // Thrown by graphql-js itself: syntax, validation, and variables that do not fit their type (which
    // the executor wraps). An answer that does not fit the schema has a path, and is ours to blame.
    const ofVariable = error.path === undefined && error.nodes?.[0]?.kind === Kind.VARIABLE_DEFINITION;
    const ofDocument =
      (cause === undefined || cause === null) &&
      (error.path === undefined || error.extensions["code"] !== undefined);
    if (ofVariable || ofDocument) {
      const code = error.extensions["code"] ?? "BAD_USER_INPUT";
      return new GraphQLError(error.message, {
        nodes: error.nodes ?? null,
        source: error.source ?? null,
        positions: error.positions ?? null,
        path: error.path ?? null,
        extensions: { ...error.extensions, code },
      });
    }
    return internal(log, cause ?? error, error);
  };
}

function unreadable(message: string): GraphQLError {
  return new GraphQLError(message, { extensions: { code: "BAD_REQUEST", http: { status: 400 } } });
}

function internal(log: Log, cause: unknown, error: unknown): GraphQLError {
  const requestId = requestScope.getStore()?.requestId ?? "none";
  log.error({ err: cause }, "unexpected error");
  return new GraphQLError(
    `Something unexpected happened. If it stays, give the operator this request id: ${requestId}.`,
    {
      ...(error instanceof GraphQLError ? { nodes: error.nodes ?? null, path: error.path ?? null } : {}),
      extensions: { code: "INTERNAL_SERVER_ERROR", requestId },
    },
  );
}
