/** Ends maintenance, and says so with the way back. */
import { drain, endMaintenance as end, type MaintenanceWindow } from '../api/maintenance'
import { explain } from '../ui/apiErrors'
import { toasts } from '../ui/toasts.svelte'
import { drainAgain, placeOf } from './maintenanceText'

/** `onChange` is called when there are other windows than before. */
export async function endMaintenance(id: number, onChange: () => void = () => {}): Promise<void> {
  const answer = await end(id)
  onChange()
  if ('refused' in answer) return toasts.fail(`Maintenance not ended. ${explain(answer.refused).text}`)
  const window: MaintenanceWindow = answer.done
  const place = placeOf(window)
  toasts.show(`Maintenance of ${place} ended`, { run: () => drain(drainAgain(window)), done: `${place} is drained again`, after: onChange }, [`maintenance ${id}`])
}
