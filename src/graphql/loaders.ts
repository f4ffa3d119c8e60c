import { type AccessLoaders, accessLoaders } from "../access/loaders.ts";
import { publishingSightOf, sightOf, type Viewer } from "../access/viewer.ts";
import type { Db } from "../database/client.ts";
import { type InventoryLoaders, inventoryLoaders } from "../inventory/loaders.ts";
import { type PublishingLoaders, publishingLoaders } from "../publishing/loaders.ts";
import { type RackLoaders, rackLoaders } from "../racks/loaders.ts";
import { type ReservationLoaders, reservationLoaders } from "../reservations/loaders.ts";

/** Every loader of one request. */
export type Loaders = AccessLoaders & InventoryLoaders & ReservationLoaders & PublishingLoaders & RackLoaders;

/** Loaders for one request of this viewer; what he may not see, none of them returns. */
export function loadersFor(db: Db, viewer: Viewer | null): Loaders {
  const sight = sightOf(viewer);
  return {
    ...accessLoaders(db, sight),
    ...inventoryLoaders(db, viewer),
    ...reservationLoaders(db, sight),
    ...rackLoaders(db, viewer),
    ...publishingLoaders(db, publishingSightOf(viewer)),
  };
}
