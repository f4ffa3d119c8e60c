import type { Refusal } from "../refusal.ts";
import type { MachineRow, SiteRow } from "./rows.ts";

export interface SiteCreated {
  readonly kind: "SiteCreated";
  readonly site: SiteRow;
}
export interface CodeTaken extends Refusal<"CodeTaken"> {
  readonly code: string;
}
export type CreateSiteResult = SiteCreated | CodeTaken;

export interface MachineCreated {
  readonly kind: "MachineCreated";
  readonly machineId: string;
}
export interface AssetTagTaken extends Refusal<"AssetTagTaken"> {
  readonly assetTag: string;
}
export interface SiteNotFound extends Refusal<"SiteNotFound"> {
  readonly siteCode: string;
}
export type CreateMachineResult = MachineCreated | AssetTagTaken | SiteNotFound;

export interface MachineStatusSet {
  readonly kind: "MachineStatusSet";
  readonly machineId: string;
}
export interface MachineInUse extends Refusal<"MachineInUse"> {
  readonly machineId: string;
}
export type SetMachineStatusResult = MachineStatusSet | MachineInUse;

export function codeTaken(code: string): CodeTaken {
  return {
    kind: "CodeTaken",
    message: `A site with the code "${code}" exists already. Use it, or choose another code.`,
    nextAction: "RENAME",
    retryAfterMs: null,
    code,
  };
}

export function assetTagTaken(assetTag: string): AssetTagTaken {
  return {
    kind: "AssetTagTaken",
    message: `A machine with the asset tag "${assetTag}" exists already. An asset tag names one machine; choose another.`,
    nextAction: "RENAME",
    retryAfterMs: null,
    assetTag,
  };
}

export function siteNotFound(siteCode: string): SiteNotFound {
  return {
    kind: "SiteNotFound",
    message: `There is no site with the code "${siteCode}". Create it first, or correct the code.`,
    nextAction: "FIX_REQUEST",
    retryAfterMs: null,
    siteCode,
  };
}

/** @param heldForMs milliseconds until the hold in the way ends by itself; null for a bound machine. */
export function machineInUse(
  machine: Pick<MachineRow, "id" | "assetTag">,
  heldForMs: number | null,
): MachineInUse {
  return heldForMs === null
    ? {
        kind: "MachineInUse",
        message: `Machine ${machine.assetTag} serves a customer and keeps its status until its binding is released. Release the binding first; the machine then goes to CLEANING.`,
        nextAction: "FIX_REQUEST",
        retryAfterMs: null,
        machineId: machine.id,
      }
    : {
        kind: "MachineInUse",
        message: `Machine ${machine.assetTag} is held for an order and keeps its status until the hold is cancelled or runs out. Wait for that, or cancel the reservation first.`,
        nextAction: "WAIT",
        retryAfterMs: heldForMs,
        machineId: machine.id,
      };
}
