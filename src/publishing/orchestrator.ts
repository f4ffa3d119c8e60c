// The client of the build service. Every call is tried once, with a time-out; who calls decides whether
// it is worth another try. Creating a build is safe to repeat: the attempt's id is its idempotency key, so
// that a call whose outcome is unknown is sent again as it was.
import { z } from "zod";

/** A build to ask for. */
export interface BuildRequest {
  /** Idempotency key: the attempt's id. */
  readonly key: string;
  /** Global id of the deployment. */
  readonly deploymentId: string;
  readonly slug: string;
  readonly attempt: number;
  readonly source: string;
}

/** A build as the service reports it. */
export interface Build {
  readonly state: "queued" | "building" | "succeeded" | "failed";
  /** What it is doing; null: it does not say. */
  readonly message: string | null;
  /** Where it is served, once it succeeded; null: it does not say. */
  readonly url: string | null;
  readonly error: string | null;
}

/** A call did not do what it was for. */
export class OrchestratorFailed extends Error {
  override readonly name = "OrchestratorFailed";
  /** Whether another try makes sense: the service was not reached, did not answer, or said so. */
  readonly transient: boolean;
  /** false: nothing can have come of it. */
  readonly outcomeUnknown: boolean;
  constructor(problem: string, kind: { transient: boolean; outcomeUnknown: boolean }, cause?: unknown) {
    super(problem, { cause });
    this.transient = kind.transient;
    this.outcomeUnknown = kind.outcomeUnknown;
  }
}

/** The calls of one build service. Each throws OrchestratorFailed, or the signal's reason. */
export interface Orchestrator {
  readonly url: string;
  /** Asks for a build; the same key again finds the same build. @returns its id. */
  buildCreate(request: BuildRequest, signal: AbortSignal): Promise<string>;
  /** @returns null when the service does not know the build. */
  buildRead(buildId: string, signal: AbortSignal): Promise<Build | null>;
  /** Stops a build; one that is over or unknown is fine as it is. */
  buildStop(buildId: string, signal: AbortSignal): Promise<void>;
}

/** Answers are a few lines; whoever sends more is no build service. */
const MAX_ANSWER_BYTES = 256 * 1024;

/** Texts of another service, made fit for the database and for a person: no control characters, bounded. */
const words = z
  .string()
  .transform((value) => {
    const clean = value
      .toWellFormed()
      .replace(/[^\P{Cc}\t\n]/gu, " ")
      .trim();
    return clean === "" ? null : [...clean].slice(0, 2000).join("");
  })
  .nullish()
  .transform((value) => value ?? null);
const created = z.object({ buildId: z.string().regex(/^[\x21-\x7e]{1,200}$/) });
const read = z.object({
  state: z.enum(["queued", "building", "succeeded", "failed"]),
  message: words,
  url: z
    .url({ protocol: /^https?$/ })
    // As the parser writes it: without what a page or the database could stumble over.
    .transform((value) => {
      const { href } = new URL(value);
      return value.endsWith("/") ? href : href.replace(/\/$/, "");
    })
    .pipe(z.string().max(2000))
    .nullish()
    .transform((value) => value ?? null),
  error: words,
});

/** @param timeoutMs how long each call may take, its answer's body included. */
export function orchestratorAt(url: string, timeoutMs: number): Orchestrator {
  async function call(
    path: string,
    init: RequestInit,
    signal: AbortSignal,
  ): Promise<{ status: number; body: string }> {
    signal.throwIfAborted();
    const timeout = AbortSignal.timeout(timeoutMs);
    try {
      const response = await fetch(url + path, {
        ...init,
        redirect: "manual",
        signal: AbortSignal.any([signal, timeout]),
      });
      const { status } = response;
      const body = await bodyRead(response);
      if (status >= 500 || status === 408 || status === 429) {
        throw new OrchestratorFailed(`it answered with status ${status}`, {
          transient: true,
          outcomeUnknown: true,
        });
      }
      return { status, body };
    } catch (error) {
      if (error instanceof OrchestratorFailed) throw error;
      signal.throwIfAborted();
      if (timeout.aborted) {
        throw new OrchestratorFailed(
          `it did not answer within ${timeoutMs / 1000} s`,
          { transient: true, outcomeUnknown: true },
          error,
        );
      }
      throw new OrchestratorFailed(
        "it cannot be reached",
        { transient: true, outcomeUnknown: !neverArrived(error) },
        error,
      );
    }
  }

  return {
    url,
    async buildCreate({ key, ...body }, signal) {
      const answer = await call(
        "/builds",
        {
          method: "POST",
          headers: { "content-type": "application/json", "idempotency-key": key },
          body: JSON.stringify(body),
        },
        signal,
      );
      if (answer.status !== 200 && answer.status !== 201) throw refused(answer.status);
      return parsed(answer.body, created).buildId;
    },
    async buildRead(buildId, signal) {
      const answer = await call(`/builds/${encodeURIComponent(buildId)}`, { method: "GET" }, signal);
      if (answer.status === 404) return null;
      if (answer.status !== 200) throw refused(answer.status);
      return parsed(answer.body, read);
    },
    async buildStop(buildId, signal) {
      const { status } = await call(`/builds/${encodeURIComponent(buildId)}`, { method: "DELETE" }, signal);
      if (status >= 300 && status !== 404) throw refused(status);
    },
  };
}

async function bodyRead(response: Response): Promise<string> {
  const chunks: Uint8Array[] = [];
  let size = 0;
  for await (const chunk of response.body ?? []) {
    size += chunk.length;
    if (size > MAX_ANSWER_BYTES) throw noBuild();
    chunks.push(chunk);
  }
  return Buffer.concat(chunks).toString("utf8");
}

function parsed<Schema extends z.ZodType>(body: string, schema: Schema): z.output<Schema> {
  let json: unknown;
  try {
    json = JSON.parse(body);
  } catch {
    throw noBuild();
  }
  const result = schema.safeParse(json);
  if (!result.success) throw noBuild();
  return result.data;
}

function noBuild(): OrchestratorFailed {
  return new OrchestratorFailed("it answered with something that is no build", {
    transient: false,
    outcomeUnknown: true,
  });
}

function refused(status: number): OrchestratorFailed {
  return new OrchestratorFailed(`it refused the request with status ${status}`, {
    transient: false,
    outcomeUnknown: false,
  });
}

/** Whether the connection was never made. */
function neverArrived(error: unknown): boolean {
  const cause = error instanceof Error ? error.cause : undefined;
  const code = cause instanceof Error && "code" in cause ? cause.code : undefined;
  return [
    "ECONNREFUSED",
    "ENOTFOUND",
    "EAI_AGAIN",
    "EHOSTUNREACH",
    "ENETUNREACH",
    "UND_ERR_CONNECT_TIMEOUT",
  ].includes(String(code));
}
