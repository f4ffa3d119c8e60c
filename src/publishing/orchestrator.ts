// The client of the build service. Every call has a time-out. Creating a build is safe to repeat: the
// attempt's id is its idempotency key, so that a call whose outcome is unknown is sent again as it was.
import pRetry from "p-retry";
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

/** The service could not be reached, or answered with 5xx, as often as it was tried. */
export class OrchestratorUnreachable extends Error {
  override readonly name = "OrchestratorUnreachable";
  /** false: no try arrived there, so that nothing can have come of it. */
  readonly outcomeUnknown: boolean;
  constructor(problem: string, outcomeUnknown: boolean, cause?: unknown) {
    super(problem, { cause });
    this.outcomeUnknown = outcomeUnknown;
  }
}

/** The service refused the call, or its answer is not what it should be; repeating it does not help. */
export class OrchestratorRefused extends Error {
  override readonly name = "OrchestratorRefused";
}

/** How often a call is tried. */
export type Patience = "once" | "bounded";

/** The calls of one build service. Each throws OrchestratorUnreachable, OrchestratorRefused, or the signal's reason. */
export interface Orchestrator {
  readonly url: string;
  /** Asks for a build; the same key again finds the same build. @returns its id. */
  buildCreate(request: BuildRequest, patience: Patience, signal: AbortSignal): Promise<string>;
  /** @returns null when the service does not know the build. */
  buildRead(buildId: string, signal: AbortSignal): Promise<Build | null>;
  /** Stops a build; one that is over or unknown is fine as it is. */
  buildStop(buildId: string, signal: AbortSignal): Promise<void>;
}

const RETRIES = 4;

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
    .max(2000)
    .nullish()
    .transform((value) => value ?? null),
  error: words,
});

/** @param timeoutMs how long each single try may take. */
export function orchestratorAt(url: string, timeoutMs: number): Orchestrator {
  async function call(path: string, init: RequestInit, signal: AbortSignal): Promise<Response> {
    signal.throwIfAborted();
    const timeout = AbortSignal.timeout(timeoutMs);
    try {
      const response = await fetch(url + path, {
        ...init,
        redirect: "manual",
        signal: AbortSignal.any([signal, timeout]),
      });
      // Read whole, within the same time-out.
      const body = await response.arrayBuffer();
      if (response.status >= 500) {
        throw new OrchestratorUnreachable(`it answered with status ${response.status}`, true);
      }
      return new Response(response.status === 204 ? null : body, { status: response.status });
    } catch (error) {
      if (error instanceof OrchestratorUnreachable) throw error;
      signal.throwIfAborted();
      if (timeout.aborted) {
        throw new OrchestratorUnreachable(`it did not answer within ${timeoutMs / 1000} s`, true, error);
      }
      throw new OrchestratorUnreachable("it cannot be reached", !neverArrived(error), error);
    }
  }

  /** Tries again after 0.25 to 4 s each; remembers whether any of the tries may have arrived. */
  async function patiently<T>(work: () => Promise<T>, signal: AbortSignal): Promise<T> {
    let outcomeUnknown = false;
    try {
      return await pRetry(work, {
        retries: RETRIES,
        minTimeout: 250,
        factor: 2,
        randomize: true,
        maxTimeout: 4000,
        signal,
        shouldRetry: ({ error }) => error instanceof OrchestratorUnreachable,
        onFailedAttempt: ({ error }) => {
          outcomeUnknown ||= error instanceof OrchestratorUnreachable && error.outcomeUnknown;
        },
      });
    } catch (error) {
      if (!(error instanceof OrchestratorUnreachable)) throw error;
      throw new OrchestratorUnreachable(error.message, outcomeUnknown, error);
    }
  }

  return {
    url,
    buildCreate(request, patience, signal) {
      const { key, ...body } = request;
      const once = async () => {
        const response = await call(
          "/builds",
          {
            method: "POST",
            headers: { "content-type": "application/json", "idempotency-key": key },
            body: JSON.stringify(body),
          },
          signal,
        );
        if (response.status !== 200 && response.status !== 201) throw refused(response.status);
        return (await answer(response, created)).buildId;
      };
      return patience === "once" ? once() : patiently(once, signal);
    },
    buildRead(buildId, signal) {
      return patiently(async () => {
        const response = await call(`/builds/${encodeURIComponent(buildId)}`, { method: "GET" }, signal);
        if (response.status === 404) return null;
        if (response.status !== 200) throw refused(response.status);
        return answer(response, read);
      }, signal);
    },
    async buildStop(buildId, signal) {
      const response = await call(`/builds/${encodeURIComponent(buildId)}`, { method: "DELETE" }, signal);
      if (response.status >= 300 && response.status !== 404) throw refused(response.status);
    },
  };
}

async function answer<Schema extends z.ZodType>(
  response: Response,
  schema: Schema,
): Promise<z.output<Schema>> {
  const parsed = schema.safeParse(await response.json().catch(() => undefined));
  if (!parsed.success) throw new OrchestratorRefused("it answered with something that is no build");
  return parsed.data;
}

function refused(status: number): OrchestratorRefused {
  return new OrchestratorRefused(`it refused the request with status ${status}`);
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
