// The wire format of Protocol Buffers, as far as the manager's messages need it: a reader, a writer, and messages by
// tables of their fields. Numbers are doubles: exact to 2^53, which ids, counts and clocks in milliseconds stay below.

const VARINT = 0, FIXED64 = 1, LENGTH = 2, FIXED32 = 5;
const utf8 = new TextDecoder(), toUtf8 = new TextEncoder();

export class Reader {
  constructor(bytes) {
    this.bytes = bytes;
    this.at = 0;
  }

  get done() {
    return this.at >= this.bytes.length;
  }

  varint() {
    let byte = this.bytes[this.at++];
    if (byte < 128) return byte;
    let value = byte & 127, weight = 128;
    do {
      byte = this.bytes[this.at++];
      value += (byte & 127) * weight;
      weight *= 128;
    } while (byte >= 128);
    return value;
  }

  // An int32: negative ones are ten bytes long, and only the lower 32 bits matter.
  int() {
    let value = 0, shift = 0, byte;
    do {
      byte = this.bytes[this.at++];
      if (shift < 32) value |= (byte & 127) << shift;
      shift += 7;
    } while (byte >= 128);
    return value;
  }

  double() {
    const view = new DataView(this.bytes.buffer, this.bytes.byteOffset + this.at, 8);
    this.at += 8;
    return view.getFloat64(0, true);
  }

  // The bytes of a field that says how long it is, without a copy.
  raw() {
    const length = this.varint();
    this.at += length;
    return this.bytes.subarray(this.at - length, this.at);
  }

  skip(type) {
    if (type === VARINT) this.varint();
    else if (type === LENGTH) this.raw();
    else if (type === FIXED64) this.at += 8;
    else if (type === FIXED32) this.at += 4;
    else throw new Error(`wire type ${type} is not used by these messages`);
  }
}

export class Writer {
  constructor() {
    this.bytes = new Uint8Array(256);
    this.at = 0;
  }

  room(more) {
    if (this.at + more <= this.bytes.length) return;
    const larger = new Uint8Array(Math.max(2 * this.bytes.length, this.at + more));
    larger.set(this.bytes);
    this.bytes = larger;
  }

  varint(value) {
    this.room(10);
    while (value >= 128) {
      this.bytes[this.at++] = (value % 128) | 128;
      value = Math.floor(value / 128);
    }
    this.bytes[this.at++] = value;
  }

  int(value) {
    if (value >= 0) return this.varint(value);
    this.room(10);
    for (let byte = 0; byte < 9; byte++) {
      this.bytes[this.at++] = (byte < 5 ? (value >> Math.min(31, 7 * byte)) & 127 : 127) | 128;
    }
    this.bytes[this.at++] = 1;
  }

  double(value) {
    this.room(8);
    new DataView(this.bytes.buffer).setFloat64(this.at, value, true);
    this.at += 8;
  }

  raw(bytes) {
    this.varint(bytes.length);
    this.room(bytes.length);
    this.bytes.set(bytes, this.at);
    this.at += bytes.length;
  }

  taken() {
    return this.bytes.slice(0, this.at);
  }
}

const scalar = (type, empty, read, write) => ({ type, empty: () => empty, read, write });

export const uint = scalar(VARINT, 0, (from) => from.varint(), (to, value) => to.varint(value));
export const int = scalar(VARINT, 0, (from) => from.int(), (to, value) => to.int(value));
export const bool = scalar(VARINT, false, (from) => from.varint() !== 0, (to, value) => to.varint(value ? 1 : 0));
export const double = scalar(FIXED64, 0, (from) => from.double(), (to, value) => to.double(value));
export const raw = scalar(LENGTH, new Uint8Array(0), (from) => from.raw(), (to, value) => to.raw(value));
export const text = scalar(LENGTH, "", (from) => utf8.decode(from.raw()), (to, value) => to.raw(toUtf8.encode(value)));

// Repeated numbers, all in one field.
export const packed = {
  type: LENGTH,
  empty: () => [],
  read(from) {
    const inside = new Reader(from.raw()), values = [];
    while (!inside.done) values.push(inside.varint());
    return values;
  },
  write(to, values) {
    const inside = new Writer();
    for (const value of values) inside.varint(value);
    to.raw(inside.taken());
  },
};

// A message by its fields: { number: [name, kind] }, or [name, kind, REPEATED].
export const REPEATED = "repeated";

export function message(fields) {
  const rows = Object.entries(fields).map(([number, row]) => [Number(number), ...row]);
  const byNumber = new Map(rows.map((row) => [row[0], row]));
  const kind = {
    type: LENGTH,
    empty: () => null,
    read: (from) => kind.decode(from.raw()),
    write: (to, value) => to.raw(kind.encode(value)),

    // Absent numbers and texts are 0 and "", absent messages null, absent lists empty.
    decode(bytes) {
      const from = new Reader(bytes), value = {};
      for (const [, name, field, repeated] of rows) value[name] = repeated ? [] : field.empty();
      while (!from.done) {
        const tag = from.varint(), row = byNumber.get(tag >>> 3);
        if (row === undefined || (tag & 7) !== row[2].type) from.skip(tag & 7);
        else if (row[3]) value[row[1]].push(row[2].read(from));
        else value[row[1]] = row[2].read(from);
      }
      return value;
    },

    // What is missing, null or empty is left out.
    encode(value) {
      const to = new Writer();
      for (const [number, name, field, repeated] of rows) {
        const given = value[name];
        const items = repeated ? given ?? [] : isEmpty(given) ? [] : [given];
        for (const item of items) {
          to.varint((number << 3) | field.type);
          field.write(to, item);
        }
      }
      return to.taken();
    },
  };
  return kind;
}

function isEmpty(value) {
  return value === undefined || value === null || value === 0 || value === "" || value === false || value.length === 0;
}
