import { existsSync, readFileSync } from "node:fs";
import {
  buildSchema,
  type GraphQLArgument,
  type GraphQLInputField,
  type GraphQLInputType,
  type GraphQLNamedType,
  type GraphQLSchema,
  getNamedType,
  isEnumType,
  isInputObjectType,
  isInterfaceType,
  isIntrospectionType,
  isListType,
  isNonNullType,
  isObjectType,
  isRequiredArgument,
  isRequiredInputField,
  isSpecifiedScalarType,
  isUnionType,
  lexicographicSortSchema,
  printSchema,
} from "graphql";
import { expect, test } from "vitest";
import { schema } from "../../src/graphql/schema.ts";

// The published contract, the committed schema.graphql and the schema in memory are one.

const COMMITTED = readFileSync(new URL("../../schema.graphql", import.meta.url), "utf8");
const CONTRACT = new URL("../../../shared/contract.graphql", import.meta.url);

/**
 * Parts of the contract that are not built yet: types by name, and fields of built types that lead to
 * them. An entry that exists fails the test, so that the list only ever shrinks.
 */
const STILL_TO_COME = [
  // metering
  "BigInt",
  "ReadingOutcome",
  "ReadingResult",
  "ReportUsageInput",
  "ReportUsageResult",
  "UsageReading",
  "UsageReported",
  "UsageTotal",
  "ServiceBinding.usage",
  "Mutation.reportUsage",
];

/** What a client of `contract` would miss in `actual`; one line a breach, none when all is there. */
function breachesOf(
  contract: GraphQLSchema,
  actual: GraphQLSchema,
  toCome: readonly string[] = [],
): string[] {
  const left = new Set(toCome);
  return Object.values(contract.getTypeMap()).flatMap((wanted) => {
    if (isIntrospectionType(wanted) || isSpecifiedScalarType(wanted) || left.has(wanted.name)) return [];
    const found = actual.getType(wanted.name);
    if (found === undefined) return [`${wanted.name} is missing`];
    if (found.constructor !== wanted.constructor) return [`${wanted.name} is of another kind`];
    return typeBreaches(wanted, found, left);
  });
}

function typeBreaches(wanted: GraphQLNamedType, found: GraphQLNamedType, left: Set<string>): string[] {
  const { name } = wanted;
  if (isEnumType(wanted) && isEnumType(found)) {
    return absent(
      wanted.getValues().map((value) => value.name),
      found.getValues().map((value) => value.name),
    ).map((value) => `${name}.${value} is missing`);
  }
  if (isUnionType(wanted) && isUnionType(found)) {
    return absent(
      wanted
        .getTypes()
        .map((type) => type.name)
        .filter((member) => !left.has(member)),
      found.getTypes().map((type) => type.name),
    ).map((member) => `${name} lacks the member ${member}`);
  }
  if (isInputObjectType(wanted) && isInputObjectType(found)) {
    const fields = found.getFields();
    return [
      ...Object.values(wanted.getFields()).flatMap((field) =>
        left.has(`${name}.${field.name}`) ? [] : inputBreaches(name, field, fields[field.name]),
      ),
      ...Object.values(fields)
        .filter((field) => isRequiredInputField(field) && wanted.getFields()[field.name] === undefined)
        .map((field) => `${name}.${field.name} is new and required`),
    ];
  }
  if ((isObjectType(wanted) || isInterfaceType(wanted)) && (isObjectType(found) || isInterfaceType(found))) {
    const fields = found.getFields();
    return [
      ...absent(
        wanted.getInterfaces().map((type) => type.name),
        found.getInterfaces().map((type) => type.name),
      ).map((missing) => `${name} does not implement ${missing}`),
      ...Object.values(wanted.getFields()).flatMap((field) => {
        const place = `${name}.${field.name}`;
        if (left.has(place)) return [];
        const other = fields[field.name];
        if (other === undefined) return [`${place} is missing`];
        return [
          ...(String(other.type) === String(field.type)
            ? []
            : [`${place} is ${other.type}, not ${field.type}`]),
          ...field.args.flatMap((arg) =>
            inputBreaches(
              place,
              arg,
              other.args.find((candidate) => candidate.name === arg.name),
            ),
          ),
          ...other.args
            .filter((arg) => isRequiredArgument(arg) && !field.args.some((known) => known.name === arg.name))
            .map((arg) => `${place}.${arg.name} is new and required`),
        ];
      }),
    ];
  }
  return [];
}

/** An argument or input field: it may accept more than the contract says, never less. */
function inputBreaches(
  place: string,
  wanted: GraphQLArgument | GraphQLInputField,
  found: GraphQLArgument | GraphQLInputField | undefined,
): string[] {
  const name = `${place}.${wanted.name}`;
  if (found === undefined) return [`${name} is missing`];
  if (!accepts(found.type, wanted.type)) return [`${name} is ${found.type}, not ${wanted.type}`];
  return JSON.stringify(found.defaultValue) === JSON.stringify(wanted.defaultValue)
    ? []
    : [`${name} has another default`];
}

/** Whether every value of `wanted` is one of `found`. */
function accepts(found: GraphQLInputType, wanted: GraphQLInputType): boolean {
  if (isNonNullType(found)) return isNonNullType(wanted) && accepts(found.ofType, wanted.ofType);
  if (isNonNullType(wanted)) return accepts(found, wanted.ofType);
  if (isListType(found)) return isListType(wanted) && accepts(found.ofType, wanted.ofType);
  return !isListType(wanted) && getNamedType(found).name === getNamedType(wanted).name;
}

function absent(wanted: readonly string[], found: readonly string[]): string[] {
  return wanted.filter((name) => !found.includes(name));
}

/** Everything that a reader of the schema would have to guess at. */
function undescribed(described: GraphQLSchema): string[] {
  const lacking = (place: string, { description }: { description?: string | null | undefined }) =>
    (description ?? "").trim() === "" ? [place] : [];
  return Object.values(described.getTypeMap()).flatMap((type) => {
    if (isIntrospectionType(type) || isSpecifiedScalarType(type)) return [];
    const own = lacking(type.name, type);
    if (isEnumType(type))
      return [...own, ...type.getValues().flatMap((value) => lacking(`${type.name}.${value.name}`, value))];
    if (isInputObjectType(type))
      return [
        ...own,
        ...Object.values(type.getFields()).flatMap((field) => lacking(`${type.name}.${field.name}`, field)),
      ];
    if (!isObjectType(type) && !isInterfaceType(type)) return own;
    return [
      ...own,
      ...Object.values(type.getFields()).flatMap((field) => [
        ...lacking(`${type.name}.${field.name}`, field),
        ...field.args.flatMap((arg) => lacking(`${type.name}.${field.name}(${arg.name})`, arg)),
      ]),
    ];
  });
}

test("the committed schema keeps everything that the contract promises", (context) => {
  if (!existsSync(CONTRACT)) context.skip("shared/contract.graphql is not beside this repository");
  const contract = buildSchema(readFileSync(CONTRACT, "utf8"));
  expect(breachesOf(contract, buildSchema(COMMITTED), STILL_TO_COME)).toEqual([]);
});

test("what is listed as still to come is in the contract and not in the schema", (context) => {
  if (!existsSync(CONTRACT)) context.skip("shared/contract.graphql is not beside this repository");
  const contract = buildSchema(readFileSync(CONTRACT, "utf8"));
  const exists = (inside: GraphQLSchema, entry: string) => {
    const [typeName, fieldName] = entry.split(".") as [string, string | undefined];
    const type = inside.getType(typeName);
    if (type === undefined || fieldName === undefined) return type !== undefined;
    return (isObjectType(type) || isInputObjectType(type)) && type.getFields()[fieldName] !== undefined;
  };
  expect(STILL_TO_COME.filter((entry) => !exists(contract, entry))).toEqual([]);
  expect(
    STILL_TO_COME.filter((entry) => exists(schema, entry)),
    "built: take it off the list",
  ).toEqual([]);
  expect(new Set(STILL_TO_COME).size).toBe(STILL_TO_COME.length);
});

test("schema.graphql is what the code prints (`npm run generate`)", () => {
  const body = COMMITTED.replace(/^#.*\n/, "").trimEnd();
  expect(body).toBe(printSchema(lexicographicSortSchema(schema)));
});

test("every type, field, argument, enum value and input field has a description", () => {
  expect(undescribed(schema)).toEqual([]);
});

test("a missing description is found wherever it is missing", () => {
  const bare = buildSchema(`
    "Root." type Query { bare(bare: Int): Int "It." told("It." told: Int): Bare }
    enum Bare { ONE "Two." TWO }
    "In." input In { bare: Int "It." told: Int }`);
  expect(undescribed(bare).sort()).toEqual(["Bare", "Bare.ONE", "In.bare", "Query.bare", "Query.bare(bare)"]);
});

const SMALL = `
  interface Node { id: ID! }
  type Query { thing(id: ID!, size: Int = 1): Thing things(wish: Wish): [Thing!]! }
  type Thing implements Node { id: ID! name: String! note: String colour: Colour! }
  enum Colour { RED BLUE }
  input Wish { name: String! colour: Colour sizes: [Int!] }
  type Made { thing: Thing! }
  type Refused { message: String! }
  union Outcome = Made | Refused
  type Mutation { make(wish: Wish!): Outcome }`;

test("the comparison finds nothing in equal schemas, nor in one that only grew", () => {
  const grown = SMALL.replace("name: String! note", "name: String! added: Int note")
    .replace("RED BLUE", "RED BLUE GREEN")
    .replace("colour: Colour sizes", "colour: Colour added: Int! = 3 sizes")
    .replace("= Made | Refused", "= Made | Refused | Thing")
    .replace("thing(id: ID!", "thing(added: Int, id: ID");
  expect(breachesOf(buildSchema(SMALL), buildSchema(SMALL))).toEqual([]);
  expect(grown).not.toBe(SMALL);
  expect(breachesOf(buildSchema(SMALL), buildSchema(grown))).toEqual([]);
});

test.each([
  ["a dropped field", "note: String ", "", "Thing.note is missing"],
  ["a renamed field", "note: String", "remark: String", "Thing.note is missing"],
  ["a nullable output", "name: String! note", "name: String note", "Thing.name is String, not String!"],
  ["a stricter output", "note: String", "note: String!", "Thing.note is String!, not String"],
  ["a changed output", "note: String", "note: Int", "Thing.note is Int, not String"],
  ["a nullable item", "[Thing!]!", "[Thing]!", "Query.things is [Thing]!, not [Thing!]!"],
  ["a dropped root field", "things(wish: Wish): [Thing!]!", "", "Query.things is missing"],
  ["a renamed enum value", "RED BLUE", "RED NAVY", "Colour.BLUE is missing"],
  ["a renamed member", "= Made | Refused", "= Made | Thing", "Outcome lacks the member Refused"],
  ["a dropped interface", "Thing implements Node", "Thing", "Thing does not implement Node"],
  ["a dropped argument", ", size: Int = 1", "", "Query.thing.size is missing"],
  [
    "a stricter argument",
    "things(wish: Wish)",
    "things(wish: Wish!)",
    "Query.things.wish is Wish!, not Wish",
  ],
  ["another default", "size: Int = 1", "size: Int = 2", "Query.thing.size has another default"],
  ["a new required argument", "thing(id", "thing(more: Int!, id", "Query.thing.more is new and required"],
  [
    "a stricter input field",
    "colour: Colour sizes",
    "colour: Colour! sizes",
    "Wish.colour is Colour!, not Colour",
  ],
  ["a stricter list input", "sizes: [Int!]", "sizes: [Int!]!", "Wish.sizes is [Int!]!, not [Int!]"],
  [
    "a new required input field",
    "sizes: [Int!]",
    "sizes: [Int!] more: Int!",
    "Wish.more is new and required",
  ],
  ["a dropped input field", "sizes: [Int!]", "", "Wish.sizes is missing"],
  ["a dropped type", "type Refused { message: String! }", "", "Refused is missing"],
  ["another kind", "enum Colour { RED BLUE }", "scalar Colour", "Colour is of another kind"],
])("the comparison finds %s", (_name, before, after, breach) => {
  let changed = SMALL.replace(before, after);
  if (breach === "Refused is missing") changed = changed.replace(" | Refused", "");
  expect(changed).not.toBe(SMALL);
  expect(breachesOf(buildSchema(SMALL), buildSchema(changed))).toContain(breach);
});

test("the comparison passes over what is listed as still to come, and over nothing else", () => {
  const smaller = SMALL.replace("note: String ", "").replace("RED BLUE", "RED");
  expect(breachesOf(buildSchema(SMALL), buildSchema(smaller), ["Thing.note"])).toEqual([
    "Colour.BLUE is missing",
  ]);
});
