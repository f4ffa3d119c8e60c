// Edits of what racks and machines measure. What stands must still fit, or nothing changes. Each is one call
// of a SQL function (migration rack_operations), and therefore one transaction. Twice at once: the later
// one stays.
import type { Db } from "../database/client.ts";
import { rackDecided, rackReservationsDecided } from "./decided.ts";
import {
  type GeometryAnswer,
  type MachineGeometryEdit,
  machineGeometryCall,
  type RackEdit,
  rackEditCall,
} from "./queries/operations.ts";
import {
  type GeometryConflict,
  geometryConflict,
  machineNotFound,
  rackNameTaken,
  rackNotFound,
  type SetMachineGeometryResult,
  type UpdateRackResult,
} from "./results.ts";

/** @throws TryAgain when the rack stays locked. */
export async function rackUpdate(db: Db, edit: RackEdit): Promise<UpdateRackResult> {
  const answer = await rackEditCall(db, edit);
  switch (answer.outcome) {
    case "set":
      return { kind: "RackUpdated", rack: await rackDecided(db, edit.rackId) };
    case "not_found":
      return rackNotFound();
    case "name_taken":
      return rackNameTaken(edit.name ?? "");
    case "conflict":
      return conflict(db, answer);
  }
}

/** An installed machine's place grows with it, if there is room. @throws TryAgain when something stays locked. */
export async function machineGeometrySet(
  db: Db,
  edit: MachineGeometryEdit,
): Promise<SetMachineGeometryResult> {
  const answer = await machineGeometryCall(db, edit);
  switch (answer.outcome) {
    case "not_found":
      return machineNotFound();
    case "conflict":
      return conflict(db, answer);
    default:
      return { kind: "MachineGeometrySet", machineId: edit.machineId };
  }
}

async function conflict(db: Db, answer: GeometryAnswer): Promise<GeometryConflict> {
  return geometryConflict(await rackReservationsDecided(db, answer.conflicts ?? []), answer.lacking ?? []);
}
