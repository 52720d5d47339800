/** The fleet as a form offers it: hosts with their GPUs, and the models there are. */
import type { Host } from '../api/types'
import { plain } from '../ui/format'
import { inventory } from '../stream/inventory'

export interface HostChoice {
  name: string
  title: string
  detail: string
  gpus: { uuid: string; label: string; title: string }[]
}

export function hostChoices(hosts: readonly Host[]): HostChoice[] {
  const choices = new Map<string, HostChoice>()
  for (const host of hosts) {
    if (host.gpus.length === 0) continue
    const choice = choices.get(host.name) ?? { name: host.name, title: plain(host.display_name), detail: plain(inventory(host.gpus)), gpus: [] }
    choice.gpus.push(...host.gpus.map((gpu) => ({ uuid: gpu.uuid, label: plain(gpu.label), title: plain(`GPU ${gpu.label} · ${gpu.display_name}`) })))
    choices.set(host.name, choice)
  }
  return [...choices.values()]
}

export function modelNames(hosts: readonly Host[]): string[] {
  return [...new Set(hosts.flatMap(({ gpus }) => gpus.map((gpu) => plain(gpu.display_name))))].sort()
}
