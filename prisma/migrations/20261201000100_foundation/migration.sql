-- Tables of access, inventory and reservations. Every instant is a timestamptz of this database's
-- clock. Texts are bounded here as well as in the application, so that no path can store what a
-- page cannot show.

CREATE TABLE organization (
  id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
  slug text NOT NULL,
  name text NOT NULL,
  -- Machines that the organization may hold at one time; null follows HOLDFAST_HOLD_LIMIT.
  hold_limit integer,
  created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  CONSTRAINT organization_slug_is_a_label CHECK (slug ~ '^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$'),
  CONSTRAINT organization_name_length CHECK (char_length(name) BETWEEN 1 AND 200),
  CONSTRAINT organization_hold_limit_range CHECK (hold_limit BETWEEN 0 AND 100000)
);
-- A slug names one organization.
CREATE UNIQUE INDEX organization_slug ON organization (slug);

CREATE TABLE api_token (
  id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
  name text NOT NULL,
  role text NOT NULL,
  organization_id uuid REFERENCES organization (id),
  -- SHA-256 of the secret; the secret itself is shown once and stored nowhere.
  secret_sha256 bytea NOT NULL,
  created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  expires_at timestamptz,
  revoked_at timestamptz,
  CONSTRAINT api_token_name_length CHECK (char_length(name) BETWEEN 1 AND 200),
  CONSTRAINT api_token_role CHECK (role IN ('operator', 'storefront', 'tenant', 'meter')),
  CONSTRAINT api_token_hash_length CHECK (octet_length(secret_sha256) = 32),
  -- A tenant acts for one organization; operators and storefronts act for all of them.
  CONSTRAINT api_token_organization CHECK (
    CASE role WHEN 'tenant' THEN organization_id IS NOT NULL
              WHEN 'meter' THEN true
              ELSE organization_id IS NULL END)
);
-- A secret opens one token.
CREATE UNIQUE INDEX api_token_secret ON api_token (secret_sha256);
CREATE INDEX api_token_organization_id ON api_token (organization_id);

-- A rollout switch is off until an operator opens it; one row a module, always there.
CREATE TABLE rollout_switch (
  module text PRIMARY KEY,
  enabled boolean NOT NULL DEFAULT false,
  changed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  CONSTRAINT rollout_switch_module CHECK (module IN ('datacenter', 'publishing'))
);
INSERT INTO rollout_switch (module) VALUES ('datacenter'), ('publishing');

-- A row overrides the switch for one organization, in either direction; no row follows the switch.
CREATE TABLE feature_override (
  organization_id uuid NOT NULL REFERENCES organization (id),
  module text NOT NULL REFERENCES rollout_switch (module),
  enabled boolean NOT NULL,
  changed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (organization_id, module)
);

CREATE TABLE site (
  id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
  code text NOT NULL,
  name text NOT NULL,
  created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  CONSTRAINT site_code_length CHECK (char_length(code) BETWEEN 1 AND 50),
  CONSTRAINT site_name_length CHECK (char_length(name) BETWEEN 1 AND 200)
);
-- A code names one site.
CREATE UNIQUE INDEX site_code ON site (code);

CREATE TABLE machine (
  -- Random, because machines of equal fit are entered at a place in the order of their ids.
  id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
  asset_tag text NOT NULL,
  site_id uuid NOT NULL REFERENCES site (id),
  location text,
  manufacturer text NOT NULL,
  model text NOT NULL,
  cpu_cores integer NOT NULL,
  memory_gib integer NOT NULL,
  storage_gib integer NOT NULL,
  labels text[] NOT NULL DEFAULT ARRAY[]::text[],
  monthly_price_cents integer,
  status text NOT NULL DEFAULT 'planned',
  -- What the reservation and binding rows say about this machine. Only their triggers write it
  -- (20261201000200); it exists so that "free" can be an index and so that a locked machine row is
  -- judged by its newest version.
  occupancy text NOT NULL DEFAULT 'free',
  created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  CONSTRAINT machine_asset_tag_length CHECK (char_length(asset_tag) BETWEEN 1 AND 100),
  CONSTRAINT machine_location_length CHECK (char_length(location) BETWEEN 1 AND 200),
  CONSTRAINT machine_manufacturer_length CHECK (char_length(manufacturer) BETWEEN 1 AND 200),
  CONSTRAINT machine_model_length CHECK (char_length(model) BETWEEN 1 AND 200),
  CONSTRAINT machine_cpu_cores_range CHECK (cpu_cores BETWEEN 1 AND 100000),
  CONSTRAINT machine_memory_gib_range CHECK (memory_gib BETWEEN 1 AND 100000000),
  CONSTRAINT machine_storage_gib_range CHECK (storage_gib BETWEEN 0 AND 1000000000),
  CONSTRAINT machine_labels_count CHECK (cardinality(labels) <= 64 AND array_position(labels, NULL) IS NULL),
  CONSTRAINT machine_monthly_price_range CHECK (monthly_price_cents >= 0),
  CONSTRAINT machine_status CHECK (
    status IN ('planned', 'staged', 'ready', 'maintenance', 'cleaning', 'failed', 'retired')),
  CONSTRAINT machine_occupancy CHECK (occupancy IN ('free', 'held', 'bound'))
);
-- An asset tag names one machine.
CREATE UNIQUE INDEX machine_asset_tag ON machine (asset_tag);
CREATE INDEX machine_site_id ON machine (site_id);

-- The allocator's shelf: the machines for sale at this moment and no others, in the order of best
-- fit, so that finding one costs the same on a full shelf and on a nearly empty one.
CREATE INDEX machine_shelf_by_site ON machine (site_id, cpu_cores, memory_gib, storage_gib, id)
  WHERE status = 'ready' AND occupancy = 'free';
CREATE INDEX machine_shelf_by_model ON machine (model, cpu_cores, memory_gib, storage_gib, id)
  WHERE status = 'ready' AND occupancy = 'free';
CREATE INDEX machine_shelf ON machine (cpu_cores, memory_gib, storage_gib, id)
  WHERE status = 'ready' AND occupancy = 'free';

CREATE TABLE reservation (
  id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
  organization_id uuid NOT NULL REFERENCES organization (id),
  machine_id uuid NOT NULL REFERENCES machine (id),
  order_reference text NOT NULL,
  idempotency_key text NOT NULL,
  -- The order's requirements in canonical form; with order_reference they are what "the same
  -- arguments" means when a key is used again.
  requirements jsonb NOT NULL,
  state text NOT NULL DEFAULT 'held',
  held_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  hold_seconds integer NOT NULL,
  expires_at timestamptz NOT NULL,
  settled_at timestamptz,
  cancellation_reason text,
  -- Frozen: rank, skipped, lost races, the machine as it was, and the explanation.
  choice jsonb NOT NULL,
  CONSTRAINT reservation_order_reference_length CHECK (char_length(order_reference) BETWEEN 1 AND 200),
  CONSTRAINT reservation_idempotency_key_length CHECK (char_length(idempotency_key) BETWEEN 1 AND 200),
  CONSTRAINT reservation_cancellation_reason_length CHECK (char_length(cancellation_reason) BETWEEN 1 AND 1000),
  CONSTRAINT reservation_state CHECK (state IN ('held', 'converted', 'expired', 'cancelled')),
  CONSTRAINT reservation_settled_when_over CHECK ((state = 'held') = (settled_at IS NULL)),
  CONSTRAINT reservation_reason_only_when_cancelled CHECK (cancellation_reason IS NULL OR state = 'cancelled'),
  CONSTRAINT reservation_hold_seconds_range CHECK (hold_seconds BETWEEN 1 AND 2592000),
  -- A hold never lives longer than twice its hold time, whoever extends it.
  CONSTRAINT reservation_deadline_bounded CHECK (
    expires_at > held_at AND expires_at <= held_at + 2 * make_interval(secs => hold_seconds)),
  -- What a binding refers to, so that it cannot name another machine or organization.
  CONSTRAINT reservation_identity UNIQUE (id, machine_id, organization_id)
);
CREATE INDEX reservation_machine_id ON reservation (machine_id);
CREATE INDEX reservation_list ON reservation (held_at DESC, id DESC);
CREATE INDEX reservation_list_by_organization ON reservation (organization_id, held_at DESC, id DESC);
-- Holds of an organization, counted for its limit. "Not settled" is "held" (reservation_settled_when_over);
-- said this way, no index over all holds can be taken for it while the tables are too new for
-- statistics, and plans are kept for as long as a connection lives.
CREATE INDEX reservation_open_by_organization ON reservation (organization_id, expires_at) WHERE settled_at IS NULL;
-- Overdue holds, in the order in which they fell due.
CREATE INDEX reservation_deadline ON reservation (expires_at, id) WHERE state = 'held';

CREATE TABLE service_binding (
  id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
  reservation_id uuid NOT NULL,
  organization_id uuid NOT NULL REFERENCES organization (id),
  machine_id uuid NOT NULL REFERENCES machine (id),
  service_reference text NOT NULL,
  bound_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  released_at timestamptz,
  CONSTRAINT service_binding_reference_length CHECK (char_length(service_reference) BETWEEN 1 AND 200),
  CONSTRAINT service_binding_released_after_bound CHECK (released_at >= bound_at),
  CONSTRAINT service_binding_of_its_reservation FOREIGN KEY (reservation_id, machine_id, organization_id)
    REFERENCES reservation (id, machine_id, organization_id)
);
CREATE INDEX service_binding_organization_id ON service_binding (organization_id);

-- One row a sweep, written by the worker that did it; what "when did it last run" is read from.
CREATE TABLE sweep (
  id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
  worker text NOT NULL,
  started_at timestamptz NOT NULL,
  finished_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  expired integer NOT NULL,
  failed integer NOT NULL,
  CONSTRAINT sweep_counts CHECK (expired >= 0 AND failed >= 0)
);
CREATE INDEX sweep_finished_at ON sweep (finished_at);
