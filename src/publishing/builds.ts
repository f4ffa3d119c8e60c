import { globalIdEncode } from "../graphql/globalId.ts";
import type { BuildRequest } from "./orchestrator.ts";

/** The address of an app. */
export function appUrl(slug: string, domain: string): string {
  return `https://${slug}.${domain}`;
}

/** What the build service is asked for an attempt; the same for every try. */
export function buildRequest(attempt: {
  readonly attemptId: string;
  readonly deploymentId: string;
  readonly slug: string;
  readonly attempt: number;
  readonly source: string;
}): BuildRequest {
  return {
    key: attempt.attemptId,
    deploymentId: globalIdEncode("Deployment", attempt.deploymentId),
    slug: attempt.slug,
    attempt: attempt.attempt,
    source: attempt.source,
  };
}
