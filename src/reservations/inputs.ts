import { z } from "zod";
import { globalIdOf } from "../graphql/globalId.ts";
import { optional, text } from "../graphql/input.ts";
import { machineRequirements } from "../inventory/inputs.ts";
import { RESERVATION_STATES } from "./states.ts";

export const reserveMachineInput = z.object({
  organizationId: optional(globalIdOf("Organization")),
  orderReference: text(200),
  idempotencyKey: text(200),
  requirements: machineRequirements,
});
export const convertReservationInput = z.object({
  reservationId: globalIdOf("Reservation"),
  serviceReference: text(200),
});
export const cancelReservationInput = z.object({
  reservationId: globalIdOf("Reservation"),
  reason: optional(text(1000)),
});
export const extendReservationInput = z.object({ reservationId: globalIdOf("Reservation") });
export const releaseBindingInput = z.object({ bindingId: globalIdOf("ServiceBinding") });
export const reservationFilter = z.object({
  state: optional(z.enum(RESERVATION_STATES)),
  organizationId: optional(globalIdOf("Organization")),
});
