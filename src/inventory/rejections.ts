import type { MachineRequirements } from "./requirements.ts";
import type { MachineRow } from "./rows.ts";

/** FILTERED: the machine never fits this order. EXHAUSTED: it fits the shelf, and is taken. */
export type RejectionKind = "FILTERED" | "EXHAUSTED";

/** Every reason that machine_misfits and machine_rejections know, in the order in which they are told. */
export const REJECTION_KINDS = {
  wrong_site: "FILTERED",
  wrong_manufacturer: "FILTERED",
  wrong_model: "FILTERED",
  too_few_cores: "FILTERED",
  too_little_memory: "FILTERED",
  too_little_storage: "FILTERED",
  missing_label: "FILTERED",
  not_installed: "FILTERED",
  not_ready: "FILTERED",
  held: "EXHAUSTED",
  bound: "EXHAUSTED",
} as const satisfies Record<string, RejectionKind>;

export type RejectionReason = keyof typeof REJECTION_KINDS;
export const REJECTION_REASONS = Object.keys(REJECTION_KINDS) as RejectionReason[];

/** One reason why one machine was ruled out. */
export interface Rejection {
  readonly reason: RejectionReason;
  readonly kind: RejectionKind;
  readonly wanted: string | null;
  readonly actual: string | null;
}

/** How many machines a reason rules out; a machine with several reasons counts under each. */
export interface RejectionCount {
  readonly reason: RejectionReason;
  readonly kind: RejectionKind;
  readonly machines: number;
}

/** Puts the values beside the reasons that the database gave. */
export function rejectionsOf(
  machine: MachineRow,
  requirements: MachineRequirements,
  reasons: readonly RejectionReason[],
): Rejection[] {
  return reasons.map((reason) => {
    const [wanted, actual] = compared(machine, requirements, reason);
    return { reason, kind: REJECTION_KINDS[reason], wanted, actual };
  });
}

function compared(
  machine: MachineRow,
  requirements: MachineRequirements,
  reason: RejectionReason,
): [string | null, string | null] {
  switch (reason) {
    case "wrong_site":
      return [requirements.siteCode, machine.siteCode];
    case "wrong_manufacturer":
      return [requirements.manufacturer, machine.manufacturer];
    case "wrong_model":
      return [requirements.model, machine.model];
    case "too_few_cores":
      return [String(requirements.minCpuCores), String(machine.cpuCores)];
    case "too_little_memory":
      return [`${requirements.minMemoryGib} GiB`, `${machine.memoryGib} GiB`];
    case "too_little_storage":
      return [`${requirements.minStorageGib} GiB`, `${machine.storageGib} GiB`];
    case "missing_label":
      return [(requirements.labels ?? []).join(", "), machine.labels.join(", ")];
    case "not_installed":
      return ["in a rack", "in no rack"];
    case "not_ready":
      return ["READY", machine.status.toUpperCase()];
    case "held":
      return [null, machine.heldUntil === null ? null : `held until ${machine.heldUntil.toISOString()}`];
    case "bound":
      return [null, "serves a customer"];
  }
}
