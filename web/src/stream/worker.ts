/** The shared worker: the glue between the tabs' ports and the streamHub. */
import { StreamHub, type Port, type ToStreamHub } from './streamHub'

const SWEEP_MS = 10_000

const streamHub = new StreamHub(() => Date.now() / 1000)

addEventListener('connect', (event) => {
  const port = (event as MessageEvent).ports[0]
  if (port === undefined) return
  port.onmessage = ({ data }: MessageEvent<ToStreamHub>) => streamHub.receive(port as Port, data)
})
setInterval(() => streamHub.sweep(), SWEEP_MS)
