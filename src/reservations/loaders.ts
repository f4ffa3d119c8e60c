import DataLoader from "dataloader";
import type { Sight } from "../access/viewer.ts";
import { byKey } from "../database/byKey.ts";
import type { Db } from "../database/client.ts";
import { bindingsBy, reservationsByIds } from "./queries/reservations.ts";
import type { BindingRow, ReservationRow } from "./rows.ts";

/** Batched reads of one request, within the viewer's sight. */
export interface ReservationLoaders {
  readonly reservation: DataLoader<string, ReservationRow | null>;
  readonly binding: DataLoader<string, BindingRow | null>;
  readonly bindingOfReservation: DataLoader<string, BindingRow | null>;
}

export function reservationLoaders(db: Db, sight: Sight): ReservationLoaders {
  return {
    reservation: new DataLoader(async (ids) =>
      byKey(ids, await reservationsByIds(db, sight, ids), (row) => row.id),
    ),
    binding: new DataLoader(async (ids) =>
      byKey(ids, await bindingsBy(db, sight, "id", ids), (row) => row.id),
    ),
    bindingOfReservation: new DataLoader(async (ids) =>
      byKey(ids, await bindingsBy(db, sight, "reservationId", ids), (row) => row.reservationId),
    ),
  };
}
