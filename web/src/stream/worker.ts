/** The shared worker: the glue between the tabs' ports and the exchange. */
import { Exchange, type Port, type ToExchange } from './exchange'

const SWEEP_MS = 10_000

const exchange = new Exchange(() => Date.now() / 1000)

addEventListener('connect', (event) => {
  const port = (event as MessageEvent).ports[0]
  if (port === undefined) return
  port.onmessage = ({ data }: MessageEvent<ToExchange>) => exchange.hear(port as Port, data)
})
setInterval(() => exchange.sweep(), SWEEP_MS)
