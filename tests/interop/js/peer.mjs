// A js-libp2p peer that runs commands: each line of standard input is a JSON array, [command, ...arguments],
// and gets one line on standard output, {ok: value} or {error: text}.
import { createInterface } from 'node:readline'
import { noise } from '@chainsafe/libp2p-noise'
import { yamux } from '@chainsafe/libp2p-yamux'
import { circuitRelayTransport } from '@libp2p/circuit-relay-v2'
import { identify } from '@libp2p/identify'
import { ping } from '@libp2p/ping'
import { tcp } from '@libp2p/tcp'
import { decode, encode } from '@msgpack/msgpack'
import { multiaddr } from '@multiformats/multiaddr'
import { createLibp2p } from 'libp2p'

const ECHO = '/sark/echo/1'
const PREFIX = 4
const anywhere = { runOnLimitedConnection: true }

// its dependencies expect node 22
Promise.withResolvers ??= () => {
  const made = {}
  made.promise = new Promise((resolve, reject) => Object.assign(made, { resolve, reject }))
  return made
}

const node = await createLibp2p({
  transports: [tcp(), circuitRelayTransport()],
  connectionEncrypters: [noise()],
  streamMuxers: [yamux()],
  services: { identify: identify(), ping: ping() }
})
await node.handle(ECHO, ({ stream }) => stream.sink(stream.source).catch(() => {}), anywhere)

async function gather (source) {
  const parts = []
  for await (const part of source) parts.push(Buffer.from(part.subarray()))
  return Buffer.concat(parts)
}

// The first `PREFIX` bytes of a frame are the length of the rest.
async function frame (source) {
  let data = Buffer.alloc(0)
  for await (const part of source) {
    data = Buffer.concat([data, Buffer.from(part.subarray())])
    if (data.length >= PREFIX && data.length >= PREFIX + data.readUInt32BE()) break
  }
  return decode(data.subarray(PREFIX, PREFIX + data.readUInt32BE()))
}

const commands = {
  id: () => node.peerId.toString(),
  identify: async (address) => {
    const said = await node.services.identify.identify(await node.dial(multiaddr(address)))
    return { agent: said.agentVersion, protocols: said.protocols, observed: said.observedAddr?.toString() }
  },
  ping: async (address, times) => {
    for (let i = 0; i < times; i++) await node.services.ping.ping(multiaddr(address))
    return times
  },
  // Ask for the peers nearest to a key, in the index's own messages.
  route: async (address, key) => {
    const stream = await node.dialProtocol(multiaddr(address), '/sark/index/1')
    const body = Buffer.from(encode(['c', 1, 'find-peers', { key: Buffer.from(key, 'hex'), count: 8 }]))
    const prefix = Buffer.alloc(PREFIX)
    prefix.writeUInt32BE(body.length)
    let answered
    const until = new Promise((resolve) => { answered = resolve })
    const sent = stream.sink((async function * () { // a finished stream gets no answer
      yield Buffer.concat([prefix, body])
      await until
    })())
    const [, , type, fields] = await frame(stream.source)
    answered()
    await sent
    return { type, peers: fields.contacts.map((contact) => contact.peer) }
  },
  reserve: async (gate) => {
    await node.components.transportManager.listen([multiaddr(`${gate}/p2p-circuit`)])
    const until = Date.now() + 10000
    while (Date.now() < until) {
      const circuit = node.getMultiaddrs().find((address) => address.toString().includes('/p2p-circuit'))
      if (circuit !== undefined) return circuit.toString()
      await new Promise((resolve) => setTimeout(resolve, 50))
    }
    throw new Error('no reservation within 10 s')
  },
  echo: async (address, size) => {
    const stream = await node.dialProtocol(multiaddr(address), ECHO, anywhere)
    const body = Buffer.alloc(size, 'sark')
    const [, back] = await Promise.all([stream.sink([body]), gather(stream.source)])
    return back.equals(body)
  }
}

for await (const line of createInterface({ input: process.stdin })) {
  const [name, ...args] = JSON.parse(line)
  try {
    console.log(JSON.stringify({ ok: await commands[name](...args) }))
  } catch (error) {
    console.log(JSON.stringify({ error: `${name}: ${error.stack ?? error}` }))
  }
}
await node.stop()
