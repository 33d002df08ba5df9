// Questions to the server and their answers, over one WebSocket that connects again by itself.

const TYPES = { float64: Float64Array, float32: Float32Array, int32: Int32Array, int16: Int16Array, uint8: Uint8Array };

function unpacked(buffer) {  // the layout of `pack` of review/answers.py
  const length = new DataView(buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  for (const [name, [type, shape, offset]] of Object.entries(header.arrays)) {
    const size = shape.reduce((product, each) => product * each, 1);
    header[name] = new TYPES[type](buffer, 4 + length + offset, size);
    header[name].shape = shape;
  }
  return header;
}

export class Wire {
  // `onPush` gets messages that answer no question, `onState` whether there is a connection.
  constructor(onPush, onState) {
    Object.assign(this, { onPush, onState, number: 0, waiting: new Map(), isOpen: false });
    this.connect();
  }

  connect() {
    const scheme = location.protocol === "https:" ? "wss:" : "ws:";
    this.socket = new WebSocket(`${scheme}//${location.host}/live${location.search}`);
    this.socket.binaryType = "arraybuffer";
    this.socket.onopen = () => { this.isOpen = true; this.onState(true); };
    this.socket.onmessage = ({ data }) => this.receive(typeof data === "string" ? JSON.parse(data) : unpacked(data));
    this.socket.onclose = () => {
      this.isOpen = false;
      for (const { reject } of this.waiting.values()) reject(new Error("no connection to the server"));
      this.waiting.clear();
      this.onState(false);
      setTimeout(() => this.connect(), 1000);
    };
  }

  receive(answer) {
    const waiting = this.waiting.get(answer.id);
    if (!waiting) { if (answer.id === undefined) this.onPush(answer); return; }
    this.waiting.delete(answer.id);
    if (answer.error !== undefined) waiting.reject(new Error(answer.error));
    else waiting.resolve(answer);
  }

  ask(name, fields = {}) {
    if (!this.isOpen) return Promise.reject(new Error("no connection to the server"));
    const id = ++this.number;
    return new Promise((resolve, reject) => {
      this.waiting.set(id, { resolve, reject });
      this.socket.send(JSON.stringify({ ask: name, id, ...fields }));
    });
  }
}
