/** States of a deployment, as the database calls them: building, or how the current attempt ended. */
export const DEPLOYMENT_STATES = ["building", "live", "failed", "cancelled"] as const;
export type DeploymentState = (typeof DEPLOYMENT_STATES)[number];

/** States of an attempt. `abandoned`: its owner died, hung or handed it back; `superseded`: was live. */
export const ATTEMPT_STATES = ["building", "live", "failed", "cancelled", "abandoned", "superseded"] as const;
export type AttemptState = (typeof ATTEMPT_STATES)[number];

/** What each attempt state can become; the trigger publish_attempt_guard says the same, and a test tries all pairs. */
export const ATTEMPT_TRANSITIONS = {
  building: ["live", "failed", "cancelled", "abandoned"],
  live: ["superseded"],
  failed: [],
  cancelled: [],
  abandoned: [],
  superseded: [],
} as const satisfies Record<AttemptState, readonly AttemptState[]>;
